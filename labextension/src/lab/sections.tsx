/** The sections of the sidebar: attention, worlds, ranks, losses. */

import type { TranslationBundle } from "@jupyterlab/translation";
import { addIcon, closeIcon, copyIcon, linkIcon, refreshIcon, stopIcon, type LabIcon } from "@jupyterlab/ui-components";
import React, { memo, useEffect, useState } from "react";
import { memoryOf, useOf } from "../strip";
import { bytes, clock, count, duration, rankList } from "../words";
import { attachCode, type Actions } from "./actions";
import { dragCode } from "./drag";
import type { Item, World } from "./messages";
import { Curves, Mark, Strip } from "./shared";
import type { Details } from "./worlds";

export interface Shared {
  actions: Actions;
  trans: TranslationBundle;
}

/** What a notebook runs instead, in any language. */
const LOAD = "%load_ext jupyter_dtrain";
const START = "%distributed start -n 4";

/** From this many ranks on there is an overview of marks above the list. */
const MANY = 9;

export function Tool(props: {
  icon: LabIcon;
  label: string;
  run: () => void;
  disabled?: boolean;
  className?: string;
}): React.JSX.Element {
  return (
    <button
      type="button"
      className={`dtrain-tool ${props.className ?? ""}`}
      title={props.label}
      aria-label={props.label}
      disabled={props.disabled ?? false}
      onClick={(event) => {
        event.stopPropagation();
        props.run();
      }}
    >
      <props.icon.react tag="span" width="14px" height="14px" />
    </button>
  );
}

export function Section(props: {
  title: string;
  tools?: React.ReactNode;
  children: React.ReactNode;
  note?: string;
}): React.JSX.Element {
  const [open, setOpen] = useState(true);
  return (
    <section className="dtrain-section" aria-label={props.title}>
      <h3>
        <button
          type="button"
          className="dtrain-fold"
          aria-expanded={open}
          onClick={() => {
            setOpen(!open);
          }}
        >
          <span aria-hidden="true">{open ? "▾" : "▸"}</span> {props.title}
          {props.note !== undefined && <span className="dtrain-count">{props.note}</span>}
        </button>
        {props.tools}
      </h3>
      {open && props.children}
    </section>
  );
}

export function AttentionList({ items, actions, trans }: Shared & { items: Item[] }): React.JSX.Element | null {
  if (items.length === 0) return null;
  return (
    <Section
      title={trans.__("Attention")}
      note={String(items.length)}
      tools={
        <Tool
          icon={closeIcon}
          label={trans.__("Dismiss all")}
          run={() => {
            actions.worlds.dismiss(null);
          }}
        />
      }
    >
      <ul className="dtrain-items" role="log" aria-label={trans.__("What needs attention")}>
        {items.map((item) => (
          <li key={item.id} data-level={item.level}>
            <div className="dtrain-item-head">
              <button
                type="button"
                className="dtrain-link"
                title={trans.__("Show world %1", item.name)}
                onClick={() => {
                  actions.worlds.select(item.world);
                }}
              >
                {item.words}
              </button>
              <Tool
                icon={closeIcon}
                label={trans.__("Dismiss")}
                run={() => {
                  actions.worlds.dismiss(item.id);
                }}
              />
            </div>
            <small>
              {item.name} · {new Date(1000 * item.time).toLocaleTimeString()}
            </small>
            {item.detail !== "" && <pre>{item.detail}</pre>}
          </li>
        ))}
      </ul>
    </Section>
  );
}

export function WorldList(
  props: Shared & { worlds: World[]; selected: World | null; create: () => void },
): React.JSX.Element {
  const { worlds, selected, actions, trans } = props;
  const now = useNow(1000);
  return (
    <Section
      title={trans.__("Worlds")}
      tools={<Tool icon={addIcon} label={trans.__("New…")} run={props.create} className="dtrain-new" />}
    >
      {worlds.length === 0 && (
        <div className="dtrain-empty">
          <p>{trans.__("No world is running.")}</p>
          <button type="button" className="jp-mod-styled jp-mod-accept dtrain-start" onClick={props.create}>
            {trans.__("Start a world…")}
          </button>
          <p>
            {trans.__("Or in a notebook:")}
            <br />
            <code>{LOAD}</code>
            <br />
            <code>{START}</code>
          </p>
        </div>
      )}
      <ul className="dtrain-worlds" aria-label={trans.__("Worlds")}>
        {worlds.map((world) => (
          <WorldRow key={world.id} world={world} chosen={world.id === selected?.id} now={now} {...{ actions, trans }} />
        ))}
      </ul>
    </Section>
  );
}

function WorldRow({
  world,
  chosen,
  now,
  actions,
  trans,
}: Shared & { world: World; chosen: boolean; now: number }): React.JSX.Element {
  const up = world.state === "running";
  const works = world.run?.outcome === "running";
  const select = (): void => {
    actions.worlds.select(world.id);
  };
  const code = attachCode(world);
  const about = [
    ...world.frameworks,
    trans._n("%1 rank", "%1 ranks", world.size),
    ...(world.nodes > 1 ? [trans.__("%1 nodes", world.nodes)] : []),
    trans.__("up %1", clock(Math.max(0, now / 1000 - world.started))),
  ];
  return (
    <li className="dtrain-world" data-selected={chosen} data-world={world.id}>
      <div className="dtrain-world-head">
        <button
          type="button"
          className="dtrain-name"
          aria-pressed={chosen}
          title={trans.__("Show its ranks and losses; drag into a notebook to attach that")}
          onClick={select}
          onMouseDown={(event) => {
            dragCode(event, code, world.name);
          }}
        >
          {world.name}
        </button>
        <span className="dtrain-state" data-state={works ? "working" : world.state}>
          {stateWords(world, trans)}
        </span>
      </div>
      <small>{about.join(" · ")}</small>
      <small className={world.driver?.there === true || !up ? "" : "dtrain-orphan"}>
        {driverWords(world, now, trans)}
      </small>
      {world.words !== "" && world.state !== "running" && <small className="dtrain-trouble">{world.words}</small>}
      <div className="dtrain-tools-row" role="group" aria-label={trans.__("What can be done with %1", world.name)}>
        <Tool
          icon={stopIcon}
          label={trans.__("Interrupt the cell on all ranks of %1", world.name)}
          disabled={!up || !works}
          run={() => void actions.interrupt(world)}
        />
        <Tool
          icon={linkIcon}
          label={trans.__("Attach this notebook to %1", world.name)}
          disabled={!up || !actions.hasNotebook}
          run={() => void actions.attach(world)}
        />
        <Tool
          icon={copyIcon}
          label={trans.__("Copy the code that attaches to %1", world.name)}
          run={() => {
            actions.copyCode(world);
          }}
        />
        <Tool
          icon={refreshIcon}
          label={trans.__("Restart %1 with fresh ranks", world.name)}
          disabled={!up}
          run={() => void actions.restart(world)}
        />
        <Tool
          icon={closeIcon}
          label={trans.__("Stop %1", world.name)}
          disabled={world.state === "ending"}
          run={() => void actions.stop(world)}
        />
      </div>
    </li>
  );
}

function stateWords(world: World, trans: TranslationBundle): string {
  switch (world.state) {
    case "starting":
      return trans.__("starting: %1 of %2 ranks", world.ready, world.size);
    case "ending":
      return trans.__("ending");
    case "failed":
      return trans.__("did not start");
    case "unreachable":
      return trans.__("no answer");
  }
  if (world.dead > 0) return trans._n("%1 rank dead", "%1 ranks dead", world.dead);
  return world.run?.outcome === "running" ? trans.__("run %1", world.run.number) : trans.__("idle");
}

function driverWords(world: World, now: number, trans: TranslationBundle): string {
  const { driver } = world;
  if (driver?.there === true) return trans.__("driven by %1", driver.words);
  if (world.lease_end === null) return "";
  const left = clock(Math.max(0, world.lease_end - now / 1000));
  return driver === null
    ? trans.__("nobody drives it yet: it ends in %1", left)
    : trans.__("orphaned: %1 is gone, it ends in %2", driver.words, left);
}

type RankShown = Details["ranks"][number];

export function RankList({
  world,
  details,
  actions,
  trans,
}: Shared & { world: World; details: Details }): React.JSX.Element {
  const [chosen, setChosen] = useState<number | null>(null);
  const ranks = details.ranks;
  const nodes = details.nodes;
  const most = Math.max(1, ...ranks.map((rank) => memoryOf(rank)?.used ?? 0));
  const choose = (rank: number): void => {
    setChosen((before) => (before === rank ? null : rank));
  };
  return (
    <Section title={trans.__("Ranks")} note={world.name}>
      {ranks.length === 0 && <p className="dtrain-quiet">{trans.__("They are starting.")}</p>}
      {ranks.length >= MANY && <Strip shown={{ ranks, nodes }} chosen={chosen} choose={choose} />}
      {nodes.map((host, node) => {
        const members = ranks.filter((rank) => rank.node === node);
        return (
          <div key={node} className="dtrain-node-list">
            {nodes.length > 1 && <h4>{host}</h4>}
            <ul className="dtrain-ranks" aria-label={trans.__("Ranks on %1", host)}>
              {members.map((rank) => (
                <li key={rank.rank} data-rank={rank.rank}>
                  <RankRow
                    rank={rank.rank}
                    state={rank.state}
                    does={rankDoes(rank, trans)}
                    step={rank.step === null ? "" : trans.__("step %1", count(rank.step))}
                    place={[rank.device, `pid ${rank.pid}`, rank.pace === null ? "" : `${duration(rank.pace)}/step`]
                      .filter((one) => one !== "")
                      .join(" · ")}
                    memory={memoryOf(rank)?.used ?? null}
                    most={memoryOf(rank)?.total ?? most}
                    bounded={memoryOf(rank)?.total != null}
                    use={useOf(rank)}
                    gpu={rank.gpu !== null}
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
          </div>
        );
      })}
    </Section>
  );
}

function rankDoes(rank: RankShown, trans: TranslationBundle): string {
  if (rank.state === "waiting" && rank.waits !== "") return trans.__("waits in %1", rank.waits);
  return { ok: trans.__("idle"), idle: trans.__("idle") }[rank.state as string] ?? rank.state;
}

interface RankRowProps {
  rank: number;
  state: RankShown["state"];
  does: string;
  step: string;
  place: string;
  memory: number | null;
  most: number;
  /** Whether there is no more memory than that. */
  bounded: boolean;
  use: number | null;
  gpu: boolean;
  open: boolean;
  choose: (rank: number) => void;
  trans: TranslationBundle;
}

const RankRow = memo(
  function RankRow(props: RankRowProps): React.JSX.Element {
    const { trans } = props;
    return (
      <button
        type="button"
        className="dtrain-rank"
        aria-expanded={props.open}
        onClick={() => {
          props.choose(props.rank);
        }}
      >
        <Mark state={props.state} />
        <span className="dtrain-rank-name">{trans.__("rank %1", props.rank)}</span>
        <span className="dtrain-does">{[props.does, props.step].filter((one) => one !== "").join(" · ")}</span>
        <Meter
          label={trans.__("Memory of rank %1", props.rank)}
          value={props.memory}
          most={props.most}
          alarm={props.bounded}
          text={props.memory === null ? "" : bytes(props.memory)}
        />
        <Meter
          label={props.gpu ? trans.__("GPU of rank %1", props.rank) : trans.__("CPU of rank %1", props.rank)}
          value={props.use}
          most={100}
          text={props.use === null ? "" : `${props.gpu ? "GPU" : "CPU"} ${props.use.toFixed(0)} %`}
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
  most: number;
  text: string;
  alarm?: boolean;
}): React.JSX.Element | null {
  if (value === null) return null;
  const share = Math.min(1, value / most);
  return (
    <span
      className="dtrain-meter"
      role="meter"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={Math.round(most)}
      aria-valuenow={Math.round(value)}
      aria-valuetext={text}
      data-full={alarm && share > 0.95}
    >
      <span style={{ width: `${(100 * share).toFixed(0)}%` }} />
      <em>{text}</em>
    </span>
  );
}

function RankDetail(props: Shared & { world: World; rank: RankShown; details: Details }): React.JSX.Element {
  const { world, rank, details, actions, trans } = props;
  const [shown, setShown] = useState<{ title: string; text: string } | null>(null);
  const [busy, setBusy] = useState(false);
  const ask = async (title: string, question: () => Promise<string>): Promise<void> => {
    setBusy(true);
    try {
      const text = await question();
      setShown({ title, text: text === "" ? trans.__("(nothing so far)") : text });
    } catch (error) {
      setShown({ title, text: (error as Error).message });
    } finally {
      setBusy(false);
    }
  };
  const run = details.run;
  return (
    <div className="dtrain-detail">
      {rank.words !== "" && <p>{rank.words}</p>}
      <div className="dtrain-tools-row">
        <button
          type="button"
          disabled={busy || rank.state === "dead"}
          onClick={() => void ask(trans.__("Its stack now"), () => actions.worlds.stacks(world.id, [rank.rank]))}
        >
          {trans.__("Stack")}
        </button>
        <button
          type="button"
          disabled={busy || run === null}
          onClick={() =>
            void ask(trans.__("The end of its output"), async () => {
              const { text } = await actions.worlds.output(world.id, run!.run, rank.rank);
              return text.split("\n").slice(-200).join("\n");
            })
          }
        >
          {trans.__("Output")}
        </button>
        <button
          type="button"
          disabled={rank.state !== "running" && rank.state !== "waiting"}
          onClick={() => void actions.interrupt(world, [rank.rank])}
        >
          {trans.__("Interrupt")}
        </button>
        <button type="button" disabled={rank.state === "dead"} onClick={() => void actions.kill(world, rank.rank)}>
          {trans.__("Kill…")}
        </button>
      </div>
      {shown !== null && (
        <figure>
          <figcaption>{shown.title}</figcaption>
          <pre tabIndex={0}>{shown.text}</pre>
        </figure>
      )}
    </div>
  );
}

export function Losses({ world, details, trans }: Shared & { world: World; details: Details }): React.JSX.Element {
  const { run } = details;
  const summary = world.run;
  const now = useNow(1000);
  const title =
    run === null || summary === null
      ? ""
      : [
          trans.__("Run %1", summary.number),
          summary.ranks.length === world.size ? "" : trans.__("rank %1", rankList(summary.ranks)),
          summary.outcome === "running" ? trans.__("running") : summary.outcome,
          clock(Math.max(0, (summary.ended ?? now / 1000) - summary.started)),
        ]
          .filter((part) => part !== "")
          .join(" · ");
  return (
    <>
      {title !== "" && <small className="dtrain-run-title">{title}</small>}
      {run === null ? (
        <p className="dtrain-quiet">{trans.__("Nothing has run in this world yet.")}</p>
      ) : run.metrics.size === 0 ? (
        <p className="dtrain-quiet">{trans.__("This run has logged nothing.")}</p>
      ) : (
        <Curves run={run} />
      )}
    </>
  );
}

/** The time, in milliseconds since the epoch, looked at every `period` milliseconds. */
function useNow(period: number): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden) setNow(Date.now());
    }, period);
    return () => {
      clearInterval(timer);
    };
  }, [period]);
  return now;
}
