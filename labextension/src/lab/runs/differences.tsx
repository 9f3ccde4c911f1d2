/** What differs between runs: their configuration, results, versions, commits and code, the first being compared with. */

import "../../../style/runPage.css";

import type { TranslationBundle } from "@jupyterlab/translation";
import type { JSX } from "react";
import { number } from "../../format";
import type { Theme } from "../../theme";
import { h } from "../jsx";
import type { Difference } from "../messages";
import { useAnswer } from "./answers";
import type { RunsClient } from "./client";
import { styleOf } from "./colours";
import { Diff, diffCounts } from "./diff";
import { COMPARED, differencesOf } from "./pageClient";
import { Swatch } from "./table";
import { cut, valueText } from "./values";

export function Differences(props: {
  ids: readonly number[];
  client: RunsClient;
  trans: TranslationBundle;
  theme: Theme;
}): JSX.Element {
  const { ids, client, trans, theme } = props;
  const [found, problem] = useAnswer(() => (ids.length < 2 ? null : differencesOf(client, ids)), [client, ids.join()]);
  if (ids.length < 2) {
    return <p className="dtrain-quiet">{trans.__("Choose two runs or more to see what differs between them.")}</p>;
  }
  if (problem !== "") return <p className="dtrain-trouble">{problem}</p>;
  if (found === null) return <p className="dtrain-quiet">{trans.__("Loading…")}</p>;
  const { runs, config, same, versions, commits, code, metrics } = found;
  const parts: [title: string, rows: Difference[], exact: boolean][] = [
    [trans.__("Configuration"), config, true],
    [trans.__("Results"), metrics.filter(({ name }) => !/^\w+ epoch$/.test(name)), false],
    [trans.__("Versions"), versions, true],
    [trans.__("Commit"), commits, true],
  ];
  const equal = [
    config.length === 0 && trans.__("configuration"),
    versions.length === 0 && trans.__("versions"),
    commits.length === 0 && trans.__("commit"),
    code.length === 0 && trans.__("code"),
  ].filter((words) => words !== false);
  return (
    <div className="dtrain-differences" role="region" aria-label={trans.__("What differs between these runs")}>
      {ids.length > COMPARED && (
        <p className="dtrain-quiet">{trans.__("Of %1 runs, the first %2 are compared.", ids.length, COMPARED)}</p>
      )}
      <div className="dtrain-page-scroll">
        <table className="dtrain-page-table" aria-label={trans.__("Values that differ")}>
          <thead>
            <tr>
              <td />
              {runs.map((run) => (
                <th key={run.id} scope="col" title={run.name}>
                  <Swatch theme={theme} style={styleOf(run.id)} /> {run.label}
                  <small>{cut(run.name, 40)}</small>
                </th>
              ))}
            </tr>
          </thead>
          {parts.map(
            ([title, rows, exact]) =>
              rows.length > 0 && (
                <tbody key={title}>
                  <tr className="dtrain-page-part">
                    <th colSpan={runs.length + 1} scope="colgroup">
                      {title}
                      {exact && title === parts[0]![0] && same > 0 && (
                        <small>{trans._n("%1 other value is the same", "%1 other values are the same", same)}</small>
                      )}
                    </th>
                  </tr>
                  {rows.map((row) => (
                    <Row key={row.name} {...{ row, exact }} />
                  ))}
                </tbody>
              ),
          )}
        </table>
      </div>
      {equal.length > 0 && <p className="dtrain-quiet">{trans.__("No difference in: %1.", equal.join(", "))}</p>}
      {code.map(({ run, title, diff }) => {
        const [base, other] = [runs[0], runs.find((one) => one.id === run)];
        const [added, removed] = diffCounts(diff);
        const label = trans.__("%1 of %2 against %3", title, other?.label ?? run, base?.label ?? "");
        return (
          <details key={`${run} ${title}`} className="dtrain-page-fold" open={code.length <= 3}>
            <summary>
              {label} <ins>+{added}</ins> <del>−{removed}</del>
            </summary>
            <Diff text={diff} {...{ label, trans }} />
          </details>
        );
      })}
    </div>
  );
}

/** One thing in which runs differ; where a run has the first one's value, it stands back. */
function Row({ row, exact }: { row: Difference; exact: boolean }): JSX.Element {
  const [base] = row.values;
  const text = (value: unknown): string => {
    if (value === null) return "–";
    return typeof value === "number" && !exact ? number(value) : valueText(value);
  };
  return (
    <tr>
      <th scope="row" title={row.name}>
        {cut(row.name, 80)}
      </th>
      {row.values.map((value, index) => {
        const words = text(value);
        return (
          <td
            key={index}
            data-number={typeof value === "number"}
            data-same={index > 0 && exact && words === text(base)}
            title={words.length > 40 ? cut(words, 2000) : undefined}
          >
            {cut(words, 80)}
          </td>
        );
      })}
    </tr>
  );
}
