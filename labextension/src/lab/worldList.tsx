/** The Worlds section of the sidebar: one entry for each world, with its state, its driver and its actions. */

import type { TranslationBundle } from "@jupyterlab/translation";
import { addIcon, closeIcon, copyIcon, linkIcon, refreshIcon, stopIcon } from "@jupyterlab/ui-components";
import type { JSX } from "react";
import { clock } from "../format";
import { attachCode } from "./actions";
import { dragCode } from "./drag";
import { h } from "./jsx";
import type { World } from "./messages";
import { runsOf } from "./status";
import { Section, Tool, useNow, type SectionProps } from "./section";

/** The code that starts a world from a notebook, which is not translated. */
const LOAD = "%load_ext jupyter_dtrain";
const START = "%distributed start -n 4";

export function WorldList(
  props: SectionProps & { worlds: World[]; selected: World | null; create: () => void },
): JSX.Element {
  const { worlds, selected, actions, trans } = props;
  const now = useNow(1000);
  return (
    <Section
      title={trans.__("Worlds")}
      tools={<Tool icon={addIcon} label={trans.__("New world…")} run={props.create} className="dtrain-new" />}
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
}: SectionProps & { world: World; chosen: boolean; now: number }): JSX.Element {
  const up = world.state === "running";
  const works = world.runs.length > 0;
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
          title={trans.__("Show this world's ranks and losses. Drag it into a notebook to attach the notebook.")}
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
      <div className="dtrain-tools-row" role="group" aria-label={trans.__("Actions for %1", world.name)}>
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
      return trans.__("failed to start");
    case "unreachable":
      return trans.__("not responding");
  }
  if (world.dead > 0) return trans._n("%1 rank dead", "%1 ranks dead", world.dead);
  return runsOf(world, trans);
}

function driverWords(world: World, now: number, trans: TranslationBundle): string {
  const { driver } = world;
  if (driver?.there === true) return trans.__("driven by %1", driver.words);
  if (world.lease_end === null) return "";
  const left = clock(Math.max(0, world.lease_end - now / 1000));
  return driver === null
    ? trans.__("no driver yet: ends in %1", left)
    : trans.__("orphaned: %1 is gone, ends in %2", driver.words, left);
}
