/** The Variables section of the sidebar: what each rank's variables hold, with marks where ranks differ. */

import { type JSX, useState } from "react";
import { rankList } from "../format";
import { h } from "./jsx";
import type { HeldRow, HeldVariables, World } from "./messages";
import { Section, type SectionProps } from "./section";

/** Ranks read all values of their variables to answer, so only a click asks them. */
export default function Variables({ world, actions, trans }: SectionProps & { world: World }): JSX.Element {
  const [found, setFound] = useState<HeldVariables | null>(null);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const [only, setOnly] = useState(false);
  const look = async (): Promise<void> => {
    setBusy(true);
    try {
      setFound(await actions.worlds.variables(world.id));
      setProblem("");
    } catch (error) {
      setProblem((error as Error).message);
    } finally {
      setBusy(false);
    }
  };
  const rows = found?.rows ?? [];
  const differ = rows.some((row) => row.differs);
  const shown = only ? rows.filter((row) => row.differs) : rows;
  return (
    <Section title={trans.__("Variables")}>
      <div className="dtrain-variables">
        <p className="dtrain-quiet">
          <button className="dtrain-step" disabled={busy} onClick={() => void look()}>
            {busy ? trans.__("Reading…") : found === null ? trans.__("Compare across ranks") : trans.__("Read again")}
          </button>
          {found !== null && <span role="status">{found.words}</span>}
          {differ && (
            <label>
              <input
                type="checkbox"
                checked={only}
                onChange={() => {
                  setOnly(!only);
                }}
              />
              {trans.__("only these")}
            </label>
          )}
        </p>
        {problem !== "" && <p className="dtrain-quiet">{problem}</p>}
        <table>
          <tbody>
            {shown.map((row, index) => (
              <Row key={index} row={row} named={shown[index - 1]?.name !== row.name} trans={trans} />
            ))}
          </tbody>
        </table>
        {found !== null && found.left_out > 0 && (
          <p className="dtrain-quiet">{trans.__("%1 more are left out.", found.left_out)}</p>
        )}
        {found !== null && found.silent.length > 0 && (
          <p className="dtrain-quiet">{trans.__("No answer from ranks %1.", rankList(found.silent))}</p>
        )}
      </div>
    </Section>
  );
}

function Row({ row, named, trans }: { row: HeldRow; named: boolean; trans: SectionProps["trans"] }): JSX.Element {
  const norm = row.norm === "" ? "" : trans.__("norm %1", row.norm);
  const details = [row.type, row.shape, row.dtype, row.device, norm].filter((one) => one !== "").join(" · ");
  return (
    <tr data-differs={row.differs}>
      <th scope="row" title={row.name}>
        {named ? row.name : ""}
      </th>
      <td title={row.digest}>{details}</td>
      <td>{row.differs ? `≠ ${row.ranks}` : ""}</td>
    </tr>
  );
}
