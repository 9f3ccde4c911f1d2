import time
from pathlib import Path
def test_probe(ranks):
    for code in Path('/tmp/probe_cells.txt').read_text().strip('\n').split('\n====\n'):
        t=time.time(); c=ranks.run(code); print('>>>',code,'|',round(time.time()-t,2)); print(c.said); print([ (m['msg_type'], m['content'].get('metadata')) for m in c.messages if m['msg_type'] not in('status','execute_input')][:12])
