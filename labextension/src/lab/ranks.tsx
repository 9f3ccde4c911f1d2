/** The Ranks section of the sidebar: each rank's state and resources, with its stack, its output and its actions. */

import type { TranslationBundle } from "@jupyterlab/translation";
import { type JSX, memo, useState } from "react";
import { ALL, memoryOf, usageOf, useOf } from "../rankStrip";
import { lookOf, oddOnes, remarkOf, stateWords, together, type Look } from "../standing";
import { count, duration } from "../format";
import { Section, type SectionProps } from "./section";
import { h } from "./jsx";
import type { World } from "./messages";
import { Mark, Strip } from "./rankMarks";
import type { Details } from "./worlds";

/** With this many ranks or more, an overview of marks is above the list. */
const MANY = 9;

/** With more ranks than this, hosts are rows that show their ranks at a click, and the odd ranks come first. */
const FOLDED = 64;

type RankShown = Details["ranks"][number];

export function RankList({
  world,
  named,
  details,
  actions,
  trans,
}: SectionProps & { world: World; /** Whether to name the world. */ named: boolean; details: Details }): JSX.Element {
  const [chosen, setChosen] = useState<number | null>(null);
  const [unfolded, setUnfolded] = useState(-1);
  const ranks = details.ranks;
  const nodes = details.nodes;
  const choose = (rank: number): void => {
    setChosen((before) => (before === rank ? null : rank));
  };
  const many = ranks.length > FOLDED;
  const list = (members: RankShown[], label: string, placed = false): JSX.Element => (
    <ul className="dtrain-ranks" aria-label={label}>
      {members.map((rank) => (
        <li key={rank.rank} data-rank={rank.rank}>
          <RankRow
            rank={rank.rank}
            look={lookOf(rank)}
            does={placed ? `${rank.host} · ${stateWords(rank)}` : stateWords(rank)}
            step={rank.step === null ? "" : trans.__("step %1", count(rank.step))}
            place={[rank.role, rank.device, `pid ${rank.pid}`, rank.pace === null ? "" : `${duration(rank.pace)}/step`]
              .filter((one) => one !== "")
              .join(" · ")}
            memory={memoryOf(rank)?.used ?? null}
            most={memoryOf(rank)?.total ?? null}
            held={memoryOf(rank)?.brief ?? ""}
            use={useOf(rank)}
            usage={usageOf(rank)}
            gpu={rank.gpu !== null}
            old={rank.old}
            open={chosen === rank.rank}
            choose={choose}
            trans={trans}
          />
          {chosen === rank.rank && (
            <RankDetail key={`${world.id}:${rank.rank}`} {...{ world, rank, details, actions, trans }} />
          )}
        </li>
      ))}
    </ul>
  );
  return (
    <Section title={trans.__("Ranks")} {...(named ? { note: world.name } : {})}>
      {ranks.length === 0 && <p className="dtrain-quiet">{trans.__("Ranks are starting…")}</p>}
      {ranks.length >= MANY && ranks.length <= ALL && (
        <Strip shown={{ ranks, nodes }} chosen={chosen} choose={choose} />
      )}
      {many && list(oddOnes(ranks), trans.__("Ranks to look at"), true)}
      {nodes.map((host, node) => {
        const members = ranks.filter((rank) => rank.node === node);
        if (!many || members.length === 0)
          return (
            <div key={node} className="dtrain-node-list">
              {nodes.length > 1 && <h4>{host}</h4>}
              {list(members, trans.__("Ranks on %1", host))}
            </div>
          );
        const all = together(members);
        return (
          <div key={node} className="dtrain-node-list">
            <button
              className="dtrain-rank dtrain-host-row"
              aria-expanded={node === unfolded}
              onClick={() => {
                setUnfolded(node === unfolded ? -1 : node);
              }}
            >
              <Mark look={all.state} />
              <span className="dtrain-rank-name">{host}</span>
              <span className="dtrain-does">{trans.__("ranks %1 · %2", all.list, all.words)}</span>
            </button>
            {node === unfolded && list(members, trans.__("Ranks on %1", host))}
          </div>
        );
      })}
    </Section>
  );
}

interface RankRowProps {
  rank: number;
  look: Look;
  does: string;
  step: string;
  place: string;
  memory: number | null;
  /** The memory of the device, or else of the host. */
  most: number | null;
  /** How much memory is in use, in words. */
  held: string;
  use: number | null;
  /** The same in words. */
  usage: string;
  gpu: boolean;
  /** Whether memory and use are those of an earlier run. */
  old: boolean;
  open: boolean;
  choose: (rank: number) => void;
  trans: TranslationBundle;
}

const RankRow = memo(
  function RankRow(props: RankRowProps): JSX.Element {
    const { trans } = props;
    return (
      <button
        className="dtrain-rank"
        data-old={props.old}
        aria-expanded={props.open}
        onClick={() => {
          props.choose(props.rank);
        }}
      >
        <Mark look={props.look} />
        <span className="dtrain-rank-name">{trans.__("rank %1", props.rank)}</span>
        <span className="dtrain-does">{[props.does, props.step].filter((one) => one !== "").join(" · ")}</span>
        <Meter
          label={trans.__("Memory of rank %1", props.rank)}
          value={props.memory}
          most={props.most}
          alarm={!props.gpu}
          text={props.held}
        />
        <Meter
          label={props.gpu ? trans.__("GPU of rank %1", props.rank) : trans.__("CPU of rank %1", props.rank)}
          value={props.use}
          most={100}
          text={props.usage}
        />
        <span className="dtrain-place">{props.place}</span>
      </button>
    );
  },
  (one, other) =>
    (Object.keys(one) as (keyof RankRowProps)[]).every((key) => key === "choose" || one[key] === other[key]),
);

function Meter({
  label,
  value,
  most,
  text,
  alarm = false,
}: {
  label: string;
  value: number | null;
  most: number | null;
  text: string;
  alarm?: boolean;
}): JSX.Element | null {
  if (value === null) return null;
  // Without a limit there is nothing to fill.
  const share = most === null ? 0 : Math.min(1, value / most);
  return (
    <span
      className="dtrain-meter"
      role="meter"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={Math.round(most ?? value)}
      aria-valuenow={Math.round(value)}
      aria-valuetext={text}
      data-full={alarm && share > 0.95}
    >
      <span style={{ width: `${(100 * share).toFixed(0)}%` }} />
      <em>{text}</em>
    </span>
  );
}

/** Scroll to the newest lines, once they are drawn. */
function showEnd(node: HTMLElement | null): void {
  if (node !== null) node.scrollTop = node.scrollHeight;
}

function RankDetail(props: SectionProps & { world: World; rank: RankShown; details: Details }): JSX.Element {
  const { world, rank, details, actions, trans } = props;
  const [shown, setShown] = useState<{ title: string; text: string; end: boolean } | null>(null);
  const [busy, setBusy] = useState(false);
  const ask = async (title: string, question: () => Promise<string>, end = false): Promise<void> => {
    setBusy(true);
    try {
      const text = await question();
      setShown({ title, text: text === "" ? trans.__("(nothing yet)") : text, end });
    } catch (error) {
      setShown({ title, text: (error as Error).message, end: false });
    } finally {
      setBusy(false);
    }
  };
  const run = details.runOf(rank.rank);
  return (
    <div className="dtrain-detail">
      {remarkOf(rank) !== "" && <p>{remarkOf(rank)}</p>}
      <div className="dtrain-tools-row">
        {rank.state !== "dead" && (
          <button
            disabled={busy}
            onClick={() => void ask(trans.__("Current stack"), () => actions.worlds.stacks(world.id, [rank.rank]))}
          >
            {trans.__("Stack")}
          </button>
        )}
        <button
          disabled={busy || run === null}
          onClick={() =>
            void ask(
              trans.__("Last lines of output"),
              async () => {
                const { text } = await actions.worlds.output(world.id, run!.run, rank.rank);
                return text.split("\n").slice(-200).join("\n");
              },
              true,
            )
          }
        >
          {trans.__("Output")}
        </button>
        <button
          disabled={!["sent", "running", "asking", "held", "waiting"].includes(rank.state)}
          onClick={() => void actions.interrupt(world, [rank.rank])}
        >
          {trans.__("Interrupt")}
        </button>
        {rank.state === "dead" ? (
          <button disabled={world.state !== "running"} onClick={() => void actions.heal(world)}>
            {trans.__("Replace…")}
          </button>
        ) : (
          <button onClick={() => void actions.kill(world, rank.rank)}>{trans.__("Kill…")}</button>
        )}
      </div>
      {shown !== null && (
        <figure>
          <figcaption>{shown.title}</figcaption>
          <pre key={shown.text} tabIndex={0} ref={shown.end ? showEnd : null}>
            {shown.text}
          </pre>
        </figure>
      )}
    </div>
  );
}
