/**
 * The page of one run: all that the store knows of it, and what runs it again.
 *
 * A run that goes on is asked for again every few seconds; while the server does not answer, the page keeps what it has
 * and says why. What comes from outside, such as names, code and output, is text and never markup.
 */

import "../../../style/runPage.css";

import { Clipboard } from "@jupyterlab/apputils";
import type { TranslationBundle } from "@jupyterlab/translation";
import { refreshIcon } from "@jupyterlab/ui-components";
import { type FormEvent, type JSX, type ReactNode, useEffect, useMemo, useRef, useState } from "react";
import { bytes, clock, count } from "../../format";
import { plain } from "../../panel";
import type { Theme } from "../../theme";
import { Fragment, h } from "../jsx";
import type { RunPage as Page, StoredRun } from "../messages";
import { Mark } from "../rankMarks";
import { Tool, useNow } from "../section";
import { useAnswer } from "./answers";
import { Charts } from "./charts";
import { elapsedOf, endingOfStored, labelOf, tagsOf, type RunsClient } from "./client";
import { styleOf } from "./colours";
import { Diff, diffCounts } from "./diff";
import type { Chosen } from "./figures";
import { fileName, save } from "./files";
import { Media, ranksText } from "./media";
import { curvesOf, pageOf, reportOf } from "./pageClient";
import { Swatch } from "./table";
import { cut, valueText } from "./values";

/** Milliseconds between two requests for a run that goes on. */
const PERIOD = 3000;

/** Ranks, and letters of a line of output, that are shown at first. */
const RANKS = 32;
const LETTERS = 4000;

/** Values of a configuration, and packages, above which there is a field to find some. */
const MANY = 12;

interface PageProps {
  id: number;
  client: RunsClient;
  trans: TranslationBundle;
  theme: Theme;
  attempt: (task: () => Promise<unknown>) => Promise<boolean>;
  /** Open the page of another run. */
  open: (id: number) => void;
  /** Back to the list. */
  back: () => void;
  /** Called when a person has changed the run. */
  changed?: (run: StoredRun) => void;
}

interface PartProps {
  page: Page;
  trans: TranslationBundle;
}

export function RunPage(props: PageProps): JSX.Element {
  const { id, client, trans, theme, attempt, open, back } = props;
  const [running, setRunning] = useState(false);
  const [known, problem, again] = useAnswer(() => pageOf(client, id), [client, id], running ? PERIOD : 0);
  const [curves, trouble, curvesAgain] = useAnswer(() => curvesOf(client, id), [client, id], running ? PERIOD : 0);
  // While the page of another run is on its way, the old one would be taken for it.
  const page = known?.run.id === id ? known : null;
  const goesOn = page?.run.outcome === "running";
  useEffect(() => {
    // At its end both are asked for once more: its last points came after the newest request.
    setRunning(goesOn);
  }, [goesOn]);
  const root = useRef<HTMLDivElement>(null);
  useEffect(() => {
    root.current?.closest(".dtrain-runs")?.scrollTo({ top: 0 });
    root.current?.focus({ preventScroll: true });
  }, [id]);
  const chosen = useMemo((): Chosen[] => {
    if (page === null || curves?.id !== id) return [];
    return [{ id, columns: curves, label: `${labelOf(page.run)} ${page.run.name}`.trim() }];
  }, [curves, page?.run.name, id]);
  const parts = page === null ? [] : partsOf(page, chosen, { client, trans, theme, attempt });
  return (
    <div ref={root} className="dtrain-page" role="region" aria-label={trans.__("Run")} tabIndex={-1}>
      <div className="dtrain-page-top">
        <button type="button" className="dtrain-page-button" onClick={back}>
          ← {trans.__("All runs")}
        </button>
        <nav aria-label={trans.__("Parts of this page")}>
          {parts.map(({ key, title }) => (
            <button
              key={key}
              type="button"
              onClick={() => {
                const part = root.current?.querySelector<HTMLDetailsElement>(`[data-part="${key}"]`);
                if (part == null) return;
                part.open = true;
                part.scrollIntoView({ block: "start" });
                part.querySelector("summary")?.focus({ preventScroll: true });
              }}
            >
              {title}
            </button>
          ))}
        </nav>
        <Tool
          icon={refreshIcon}
          label={trans.__("Refresh")}
          run={() => {
            again();
            curvesAgain();
          }}
        />
      </div>
      {[...new Set([problem, trouble])].map(
        (words) =>
          words !== "" && (
            <p key={words} className="dtrain-trouble" role="alert">
              {words}
            </p>
          ),
      )}
      {page === null ? (
        problem === "" && <p className="dtrain-quiet">{trans.__("Loading…")}</p>
      ) : (
        <>
          <Head
            {...{ page, client, trans, theme, attempt, open }}
            changed={(run) => {
              again();
              props.changed?.(run);
            }}
          />
          <div className="dtrain-page-parts">
            {parts.map(({ key, title, note, shut, content, narrow }) => (
              <details key={key} className="dtrain-page-section" data-part={key} data-narrow={narrow} open={!shut}>
                <summary>
                  {title} {note !== undefined && note !== "" && <span className="dtrain-count">{note}</span>}
                </summary>
                <div className="dtrain-page-body">{content}</div>
              </details>
            ))}
          </div>
        </>
      )}
    </div>
  );
}

interface PagePart {
  key: string;
  title: string;
  note?: string;
  /** Whether it is folded at first. */
  shut?: boolean;
  /** Whether two such stand beside each other where there is room. */
  narrow?: boolean;
  content: ReactNode;
}

/** The parts of the page that this run has something for, in their order. */
function partsOf(
  page: Page,
  chosen: Chosen[],
  shared: Pick<PageProps, "client" | "trans" | "theme" | "attempt">,
): PagePart[] {
  const { client, trans, theme, attempt } = shared;
  const { run, config, failures, ranks, environments, commit, happenings, files, media, trackers } = page;
  const found: (PagePart | false)[] = [
    failures.length > 0 && {
      key: "failure",
      title: trans.__("Failure"),
      note: trans._n("%1 cause", "%1 causes", failures.filter((one) => !one.echo).length || failures.length),
      content: <Failures {...{ page, trans }} />,
    },
    {
      key: "config",
      title: trans.__("Configuration"),
      note: config.length > 0 ? `${config.length}` : "",
      narrow: true,
      content: <Config {...{ page, trans }} />,
    },
    { key: "code", title: trans.__("Code"), narrow: true, content: <Code {...{ page, trans }} /> },
    {
      key: "charts",
      title: trans.__("Charts"),
      content: (
        <div className="dtrain-run dtrain-runs-charts">
          {chosen.length > 0 ? (
            <Charts runs={chosen} {...{ theme, trans, attempt }} />
          ) : (
            <p className="dtrain-quiet">{trans.__("Loading…")}</p>
          )}
        </div>
      ),
    },
    media.length > 0 && {
      key: "media",
      title: trans.__("Media"),
      note: `${media.length}`,
      content: <Media run={run.id} names={media} {...{ client, theme, trans }} />,
    },
    { key: "output", title: trans.__("Output"), narrow: true, content: <Output {...{ page, trans }} /> },
    {
      key: "ranks",
      title: trans.__("Ranks"),
      note: `${ranks.length}`,
      narrow: true,
      content: <Ranks {...{ page, trans }} />,
    },
    environments.length > 0 && {
      key: "versions",
      title: trans.__("Hosts, devices and versions"),
      content: <Environments {...{ page, trans }} />,
    },
    commit !== null && { key: "commit", title: trans.__("Commit"), content: <Commit {...{ page, trans }} /> },
    happenings.length > 0 && {
      key: "events",
      title: trans.__("Events"),
      note: `${happenings.length}`,
      narrow: true,
      content: <Events {...{ page, trans }} />,
    },
    files.length + trackers.length > 0 && {
      key: "files",
      title: trans.__("Files"),
      narrow: true,
      content: <Files {...{ page, trans }} />,
    },
    page.cells + page.job !== "" && {
      key: "again",
      title: trans.__("Run it again"),
      content: <Again {...{ page, trans }} />,
    },
  ];
  return found.filter((part) => part !== false);
}

/** The name of the run, how it ended, and where it belongs; name, tags and note can be changed. */
function Head(
  props: PartProps & Pick<PageProps, "client" | "theme" | "attempt" | "open"> & { changed: (run: StoredRun) => void },
): JSX.Element {
  const { page, client, trans, theme, attempt, open, changed } = props;
  const { run, lineage, continued } = page;
  const [edited, setEdited] = useState(false);
  useNow(1000);
  const { outcome, words, title } = endingOfStored(run);
  const facts: [string, ReactNode][] = [
    [trans.__("World"), run.world],
    [trans.__("Ranks"), run.ranks === run.size ? `${run.ranks}` : trans.__("%1 of %2", run.ranks, run.size)],
    [trans.__("Started"), new Date(run.started * 1000).toLocaleString()],
    [trans.__("Elapsed"), clock(elapsedOf(run))],
  ];
  if (run.group !== "") facts.push([trans.__("Group"), cut(run.group, 60)]);
  const links = (runs: Page["lineage"]): ReactNode =>
    runs.map(({ id, label, name }, index) => (
      <Fragment key={id}>
        {index > 0 && ", "}
        <button
          type="button"
          className="dtrain-page-link"
          title={cut(name)}
          onClick={() => {
            open(id);
          }}
        >
          {label}
        </button>
      </Fragment>
    ));
  const before = lineage.filter(({ id }) => id !== run.id).reverse();
  if (before.length > 0) facts.push([trans.__("Continues"), links(before)]);
  if (continued.length > 0) facts.push([trans.__("Continued by"), links(continued)]);
  const report = async (): Promise<void> => {
    save(fileName(`report-${run.world}-${run.number}`, "html"), await reportOf(client, [run.id]));
  };
  return (
    <header className="dtrain-page-head">
      <h2>
        <Swatch theme={theme} style={styleOf(run.id)} />
        <span title={cut(run.name, 2000)}>{cut(run.name === "" ? labelOf(run) : run.name, 120)}</span>
        <small>{labelOf(run)}</small>
        <span data-outcome={outcome} title={title}>
          <Mark look={outcome === "nan" ? "error" : outcome} /> {words}
        </span>
        <span className="dtrain-page-tools">
          <button
            type="button"
            className="dtrain-page-button"
            aria-expanded={edited}
            onClick={() => {
              setEdited(!edited);
            }}
          >
            {trans.__("Edit")}
          </button>
          <button
            type="button"
            className="dtrain-page-button"
            title={trans.__("Save one HTML file with charts, configuration and notes, which needs no server")}
            onClick={() => void attempt(report)}
          >
            {trans.__("Report")}
          </button>
        </span>
      </h2>
      <dl>
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {run.tags.length > 0 && (
        <p className="dtrain-page-tags" aria-label={trans.__("Tags")}>
          {run.tags.map((tag) => (
            <span key={tag} className="dtrain-tag">
              {tag}
            </span>
          ))}
        </p>
      )}
      {run.note !== "" && <p className="dtrain-page-note">{run.note}</p>}
      {edited && (
        <Form
          {...{ run, trans }}
          save={async (changes) => {
            const done = await attempt(async () => {
              changed(await client.edit(run.id, changes));
            });
            if (done) setEdited(false);
          }}
          cancel={() => {
            setEdited(false);
          }}
        />
      )}
    </header>
  );
}

function Form(props: {
  run: StoredRun;
  trans: TranslationBundle;
  save: (changes: { name: string; tags: string[]; note: string }) => Promise<void>;
  cancel: () => void;
}): JSX.Element {
  const { run, trans } = props;
  const [name, setName] = useState(run.name);
  const [tags, setTags] = useState(run.tags.join(", "));
  const [note, setNote] = useState(run.note);
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    void props.save({ name: name.trim(), tags: tagsOf(tags), note: note.trim() });
  };
  return (
    <form
      className="dtrain-page-form"
      onSubmit={submit}
      onKeyDown={(event) => {
        if (event.key !== "Escape") return;
        event.stopPropagation();
        props.cancel();
      }}
    >
      <label>
        {trans.__("Name")}
        <input
          value={name}
          autoFocus
          onChange={(event) => {
            setName(event.target.value);
          }}
        />
      </label>
      <label>
        {trans.__("Tags, with commas between them")}
        <input
          value={tags}
          onChange={(event) => {
            setTags(event.target.value);
          }}
        />
      </label>
      <label>
        {trans.__("Note")}
        <textarea
          rows={3}
          value={note}
          onChange={(event) => {
            setNote(event.target.value);
          }}
        />
      </label>
      <span>
        <button type="submit" className="dtrain-page-button">
          {trans.__("Save")}
        </button>
        <button type="button" className="dtrain-page-button" onClick={props.cancel}>
          {trans.__("Cancel")}
        </button>
      </span>
    </form>
  );
}

function Failures({ page, trans }: PartProps): JSX.Element {
  return (
    <>
      {page.failures.map(({ ranks, words, traceback, echo }, index) => (
        <div key={index} className="dtrain-page-failure" data-echo={echo}>
          <p>
            <b>{ranksText(ranks, trans)}</b> {echo && <small>{trans.__("because of the failure above")}</small>}
            <span>{words}</span>
          </p>
          {traceback !== "" && (
            <details className="dtrain-page-fold" open={index === 0}>
              <summary>{trans.__("Traceback")}</summary>
              <pre tabIndex={0}>{plain(traceback)}</pre>
            </details>
          )}
        </div>
      ))}
    </>
  );
}

/** Where a value of the configuration comes from: a word and a sentence. */
function originWords(origin: string, trans: TranslationBundle): [word: string, sentence: string] {
  switch (origin) {
    case "library":
      return [trans.__("library"), trans.__("An object of a library has it, such as an optimizer.")];
    case "cell":
      return [trans.__("cell"), trans.__("The cell assigns it, or passes it to a function.")];
    case "sent":
      return [trans.__("sent with -i"), trans.__("The notebook sent it with the cell.")];
    case "set":
      return ["config()", trans.__("jupyter_dtrain.config() has set it.")];
    default:
      return [origin, ""];
  }
}

function Config({ page, trans }: PartProps): JSX.Element {
  const { config } = page;
  const [search, setSearch] = useState("");
  if (config.length === 0) {
    return (
      <p className="dtrain-quiet">
        {trans.__("The cell names no values that could be its configuration. jupyter_dtrain.config(lr=0.1) adds some.")}
      </p>
    );
  }
  const sought = search.trim().toLowerCase();
  const found = config.filter(
    ({ name, value }) => name.toLowerCase().includes(sought) || valueText(value).toLowerCase().includes(sought),
  );
  return (
    <>
      {config.length > MANY && <Search {...{ search, setSearch }} label={trans.__("Find a value")} />}
      {found.length === 0 && <p className="dtrain-quiet">{trans.__("No value matches.")}</p>}
      <div
        className="dtrain-page-scroll"
        data-low="true"
        tabIndex={0}
        role="region"
        aria-label={trans.__("Configuration")}
      >
        <table className="dtrain-page-table">
          <tbody>
            {found.map(({ name, value, origin }) => {
              const [word, sentence] = originWords(origin, trans);
              const text = valueText(value);
              return (
                <tr key={name}>
                  <th scope="row" title={name}>
                    {cut(name, 80)}
                  </th>
                  <td title={text.length > 60 ? cut(text, 4000) : undefined}>
                    <code>{cut(text, 200)}</code>
                  </td>
                  <td className="dtrain-page-origin" title={sentence}>
                    {word}
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </>
  );
}

function Search(props: { search: string; setSearch: (text: string) => void; label: string }): JSX.Element {
  return (
    <input
      type="search"
      className="dtrain-page-search"
      placeholder={props.label}
      aria-label={props.label}
      value={props.search}
      onChange={(event) => {
        props.setSearch(event.target.value);
      }}
    />
  );
}

function Code({ page, trans }: PartProps): JSX.Element {
  const { run, source } = page;
  const place = [
    run.notebook !== "" && run.notebook.replace(/^.*[/\\]/, ""),
    run.heading !== "" && run.heading,
    run.cell !== null && `[${run.cell}]`,
  ].filter((part) => part !== false);
  return (
    <>
      {place.length > 0 && (
        <p className="dtrain-page-place" title={cut(run.notebook, 1000)}>
          {place.map((part) => cut(part, 120)).join(" · ")}
        </p>
      )}
      {source === "" ? (
        <p className="dtrain-quiet">{trans.__("The store has no code of this run.")}</p>
      ) : (
        <div className="dtrain-page-code">
          <pre tabIndex={0} aria-label={trans.__("Code of the cell")}>
            {source}
          </pre>
          <Copy text={source} label={trans.__("Copy the code")} trans={trans} />
        </div>
      )}
    </>
  );
}

/** A button that puts text into the clipboard, also in pages that come without encryption. */
function Copy({ text, label, trans }: { text: string; label: string; trans: TranslationBundle }): JSX.Element {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return undefined;
    const timer = setTimeout(() => {
      setDone(false);
    }, 1500);
    return () => {
      clearTimeout(timer);
    };
  }, [done]);
  return (
    <button
      type="button"
      className="dtrain-page-button dtrain-page-copy"
      aria-label={label}
      onClick={() => {
        Clipboard.copyToSystem(text);
        setDone(true);
      }}
    >
      {done ? trans.__("Copied") : trans.__("Copy")}
    </button>
  );
}

function Output({ page, trans }: PartProps): JSX.Element {
  const tails = page.tails.filter(({ lines }) => lines.length > 0);
  const [wanted, setWanted] = useState(0);
  const text = useRef<HTMLPreElement>(null);
  const tail = tails[Math.min(wanted, tails.length - 1)];
  const lines = tail?.lines.join("\n") ?? "";
  useEffect(() => {
    const node = text.current;
    // Who has scrolled up stays there.
    if (node !== null) node.scrollTop = node.scrollHeight;
  }, [lines.length, wanted]);
  if (tail === undefined) return <p className="dtrain-quiet">{trans.__("No rank has printed anything.")}</p>;
  return (
    <>
      <p className="dtrain-page-row">
        {tails.length > 1 ? (
          <select
            aria-label={trans.__("Ranks whose output is shown")}
            value={tails.indexOf(tail)}
            onChange={(event) => {
              setWanted(Number(event.target.value));
            }}
          >
            {tails.map((one, index) => (
              <option key={index} value={index}>
                {ranksText(one.ranks, trans)}
              </option>
            ))}
          </select>
        ) : (
          <span>{ranksText(tail.ranks, trans)}</span>
        )}
        {tail.more && <small>{trans._n("the last line", "the last %1 lines", tail.lines.length)}</small>}
      </p>
      <pre ref={text} tabIndex={0} aria-label={trans.__("Output")}>
        {tail.lines.map((line) => plain(cut(line, LETTERS))).join("\n")}
      </pre>
      {tail.more && (
        <small>
          {trans.__("All of it: jupyter_dtrain.Store.open().run(%1).text(%2)", `"${labelOf(page.run)}"`, tail.ranks[0])}
        </small>
      )}
    </>
  );
}

function Ranks({ page, trans }: PartProps): JSX.Element {
  const [all, setAll] = useState(false);
  const { ranks } = page;
  // Those that did not end well first, if not all are shown.
  const sorted = all || ranks.length <= RANKS ? ranks : [...ranks].sort((one, other) => strange(other) - strange(one));
  const shown = all ? sorted : sorted.slice(0, RANKS);
  return (
    <div className="dtrain-page-scroll" data-low="true" tabIndex={0} role="region" aria-label={trans.__("Ranks")}>
      <table className="dtrain-page-table">
        <thead>
          <tr>
            {[
              trans.__("Rank"),
              trans.__("Outcome"),
              trans.__("Elapsed"),
              trans.__("Host"),
              trans.__("Process"),
              trans.__("Printed"),
            ].map((words) => (
              <th key={words} scope="col">
                {words}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {shown.map(({ rank, host, pid, outcome, words, elapsed, printed }) => (
            <tr key={rank}>
              <th scope="row">{rank}</th>
              <td data-outcome={outcome} title={words}>
                <Mark look={outcome} /> {words === "" ? endingWords(outcome) : cut(words, 120)}
              </td>
              <td data-number="true">{elapsed === null ? "" : clock(elapsed)}</td>
              <td>{cut(host, 60)}</td>
              <td data-number="true">{pid > 0 ? pid : ""}</td>
              <td data-number="true">{printed > 0 ? bytes(printed) : ""}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {ranks.length > shown.length && (
        <button
          type="button"
          className="dtrain-page-button"
          onClick={() => {
            setAll(true);
          }}
        >
          {trans.__("Show %1 more ranks", ranks.length - shown.length)}
        </button>
      )}
    </div>
  );
}

function strange({ outcome }: Page["ranks"][number]): number {
  return outcome === "ok" ? 0 : outcome === "running" ? 1 : 2;
}

function endingWords(outcome: Page["ranks"][number]["outcome"]): string {
  return outcome === "lost" ? "died" : outcome;
}

function Environments({ page, trans }: PartProps): JSX.Element {
  const hosts = (ranks: readonly number[]): string[] => [
    ...new Set(page.ranks.filter(({ rank }) => ranks.includes(rank)).map(({ host }) => host)),
  ];
  return (
    <>
      {page.environments.map((environment) => {
        const { ranks, python, packages, devices, command, folder, platform, cpus, memory } = environment;
        const facts: [string, string][] = [
          [trans.__("Host"), hosts(ranks).join(", ")],
          [trans.__("Devices"), counted(devices).join(", ") || trans.__("none but the processor")],
          [trans.__("Processors"), cpus > 0 ? `${cpus}` : ""],
          [trans.__("Memory"), memory > 0 ? bytes(memory) : ""],
          [trans.__("System"), platform],
          ["Python", python],
          [trans.__("Folder"), folder],
          [trans.__("Command"), command.join(" ")],
        ];
        return (
          <div key={ranks.join()} className="dtrain-page-environment">
            {page.environments.length > 1 && <b>{ranksText(ranks, trans)}</b>}
            <dl>
              {facts
                .filter(([, value]) => value !== "")
                .map(([name, value]) => (
                  <div key={name}>
                    <dt>{name}</dt>
                    <dd title={value.length > 100 ? cut(value, 2000) : undefined}>{cut(value, 200)}</dd>
                  </div>
                ))}
            </dl>
            <Packages {...{ packages, trans }} />
          </div>
        );
      })}
    </>
  );
}

/** Equal ones together: `4 × NVIDIA H200`. */
function counted(names: readonly string[]): string[] {
  return [...new Set(names)].map((name) => {
    const times = names.filter((one) => one === name).length;
    return times > 1 ? `${times} × ${name}` : name;
  });
}

function Packages(props: { packages: Record<string, string>; trans: TranslationBundle }): JSX.Element | null {
  const { packages, trans } = props;
  const [search, setSearch] = useState("");
  const all = Object.entries(packages).sort(([one], [other]) => one.localeCompare(other));
  if (all.length === 0) return null;
  const found = all.filter(([name]) => name.toLowerCase().includes(search.trim().toLowerCase()));
  return (
    <details className="dtrain-page-fold" open={all.length <= 3 * MANY}>
      <summary>{trans._n("%1 package", "%1 packages", all.length)}</summary>
      {all.length > MANY && <Search {...{ search, setSearch }} label={trans.__("Find a package")} />}
      <ul className="dtrain-page-packages">
        {found.map(([name, version]) => (
          <li key={name}>
            {cut(name, 60)} <span>{cut(version, 40)}</span>
          </li>
        ))}
      </ul>
    </details>
  );
}

function Commit({ page, trans }: PartProps): JSX.Element {
  const { hash, branch, remote, message, dirty, diff, notes, untracked } = page.commit!;
  const [added, removed] = diffCounts(diff);
  const label = trans.__("Changes that were not committed");
  return (
    <>
      <p className="dtrain-page-row">
        <code title={hash}>{hash.slice(0, 10)}</code>
        <b>{cut(message, 200)}</b>
        <Copy text={hash} label={trans.__("Copy the commit")} trans={trans} />
      </p>
      <p className="dtrain-page-row">
        {branch !== "" && <span>{trans.__("on %1", cut(branch, 100))}</span>}
        {remote !== "" && <span className="dtrain-page-origin">{cut(remote, 200)}</span>}
        {!dirty && !notes.length && <span>{trans.__("All files were committed.")}</span>}
      </p>
      {notes.map((note) => (
        <small key={note}>{cut(note, 500)}</small>
      ))}
      {untracked.length > 0 && (
        <small title={cut(untracked.join("\n"), 2000)}>
          {trans.__("Files that git does not know: %1", cut(untracked.join(", "), 300))}
        </small>
      )}
      {diff !== "" && (
        <details className="dtrain-page-fold">
          <summary>
            {label} <ins>+{count(added)}</ins> <del>−{count(removed)}</del>
          </summary>
          <Diff text={diff} {...{ label, trans }} />
        </details>
      )}
    </>
  );
}

function Events({ page, trans }: PartProps): JSX.Element {
  return (
    <ol className="dtrain-page-events">
      {page.happenings.map(({ seconds, step, words }, index) => (
        <li key={index}>
          <small>
            {[
              seconds === null ? "" : clock(Math.max(0, seconds)),
              step === null ? "" : trans.__("step %1", count(step)),
            ]
              .filter((part) => part !== "")
              .join(" · ")}
          </small>
          <span>{cut(words, 2000)}</span>
        </li>
      ))}
    </ol>
  );
}

function Files({ page, trans }: PartProps): JSX.Element {
  const { files, trackers, ranks } = page;
  const here = new Set(ranks.map(({ host }) => host)).size <= 1;
  return (
    <>
      <ul className="dtrain-page-files">
        {files.map(({ title, path, host, there }) => (
          <li key={`${host} ${path}`} data-there={there}>
            <span>
              {title}
              {!here && host !== "" && ` · ${host}`}
              {!there && ` · ${trans.__("no longer there")}`}
            </span>
            <code title={cut(path, 4000)}>{cut(path, 300)}</code>
            <Copy text={path} label={trans.__("Copy the path of %1", title)} trans={trans} />
          </li>
        ))}
      </ul>
      {trackers.length > 0 && (
        <ul className="dtrain-page-files" aria-label={trans.__("Trackers")}>
          {trackers.map(({ tracker, target, done, words }) => (
            <li key={`${tracker} ${target}`}>
              <span>
                {tracker} · {words !== "" ? cut(words) : done ? trans.__("has all of it") : trans.__("goes on")}
              </span>
              <code>{cut(target, 300)}</code>
            </li>
          ))}
        </ul>
      )}
    </>
  );
}

function Again({ page, trans }: PartProps): JSX.Element {
  const ways: [title: string, text: string][] = [
    [trans.__("As cells"), page.cells],
    [trans.__("As a job, in a shell"), page.job],
  ];
  return (
    <>
      {ways.map(
        ([title, text]) =>
          text !== "" && (
            <div key={title} className="dtrain-page-again">
              <b>{title}</b>
              <div className="dtrain-page-code">
                <pre tabIndex={0} aria-label={title}>
                  {text}
                </pre>
                <Copy text={text} label={trans.__("Copy: %1", title)} trans={trans} />
              </div>
            </div>
          ),
      )}
    </>
  );
}
