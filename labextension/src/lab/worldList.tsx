/** The Worlds section of the sidebar: one entry for each world, with its state, who uses it, and its actions. */

import type { TranslationBundle } from "@jupyterlab/translation";
import {
  addIcon,
  closeIcon,
  codeIcon,
  copyIcon,
  LabIcon,
  linkIcon,
  refreshIcon,
  runIcon,
  stopIcon,
} from "@jupyterlab/ui-components";
import { type JSX, useState } from "react";
import { clock } from "../format";
import { attachCode } from "./actions";
import { dragCode } from "./drag";
import { Fragment, h } from "./jsx";
import type { StartFailure, World } from "./messages";
import { isPaused, stateOf } from "./status";
import { SteeringOf } from "./steering";
import { MAGIC } from "./cellTarget";
import { ASKED } from "./worlds";
import { Section, Tool, useNow, type SectionProps } from "./section";

/** The code that starts a world from a notebook, which is not translated. */
const LOAD = "%load_ext jupyter_dtrain";
const START = "%distributed start -n 4";

const pauseIcon = new LabIcon({
  name: "jupyter-dtrain:pause",
  svgstr:
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" width="16"><g class="jp-icon3" fill="#616161">' +
    '<path d="M6 5h4v14H6zM14 5h4v14h-4z"/></g></svg>',
});

export function WorldList(
  props: SectionProps & { worlds: World[]; selected: World | null; create: (again?: string) => void },
): JSX.Element {
  const { worlds, selected, create, actions, trans } = props;
  const now = useNow(1000);
  return (
    <Section
      title={trans.__("Worlds")}
      tools={
        <Tool
          icon={addIcon}
          label={trans.__("New world…")}
          run={() => {
            create();
          }}
          className="dtrain-new"
        />
      }
    >
      {worlds.length === 0 && (
        <div className="dtrain-empty">
          <p>{trans.__("A world is a set of processes, its ranks, that train together.")}</p>
          <p>{trans.__("A cell that begins with %1 runs on all of them.", MAGIC)}</p>
          <p>{trans.__("Their state and losses appear here while it runs.")}</p>
          <button
            className="jp-mod-styled jp-mod-accept dtrain-start"
            onClick={() => {
              create();
            }}
          >
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
        {worlds.map((world) =>
          world.failure === null ? (
            <WorldRow
              key={world.id}
              world={world}
              chosen={world.id === selected?.id}
              now={now}
              {...{ actions, trans }}
            />
          ) : (
            <FailedRow key={world.id} world={world} failure={world.failure} {...{ create, actions, trans }} />
          ),
        )}
      </ul>
    </Section>
  );
}

/** A world that did not start: why, what to do, and a log on request, until the person dismisses it. */
function FailedRow(
  props: SectionProps & { world: World; failure: StartFailure; create: (again?: string) => void },
): JSX.Element {
  const { world, failure, create, actions, trans } = props;
  return (
    <li className="dtrain-world" data-world={world.id}>
      <div className="dtrain-world-head">
        <strong className="dtrain-name">{world.name}</strong>
        <span className="dtrain-state" data-state="failed">
          {stateOf(world, trans)}
        </span>
      </div>
      <p className="dtrain-trouble">{failure.reason}</p>
      {failure.fix !== "" && <p>{failure.fix}</p>}
      {failure.log !== "" && (
        <details>
          <summary>{trans.__("Details")}</summary>
          <pre tabIndex={0}>{failure.log}</pre>
        </details>
      )}
      <div className="dtrain-tools-row">
        <button
          className="dtrain-step"
          onClick={() => {
            create(world.id);
          }}
        >
          {trans.__("Try again…")}
        </button>
        <button
          className="dtrain-step"
          aria-label={trans.__("Dismiss %1", world.name)}
          onClick={() => void actions.dismiss(world)}
        >
          {trans.__("Dismiss")}
        </button>
      </div>
    </li>
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
  const run = world.runs.at(-1);
  const paused = run !== undefined && isPaused(run);
  const steerer = actions.steerer(world);
  const [steering, setSteering] = useState(false);
  const [coding, setCoding] = useState<number | null>(null);
  const pause = async (): Promise<void> => {
    if (run === undefined) return;
    setSteering(true);
    await actions.attempt(() => steerer.steer(run.number, { kind: paused ? "resume" : "pause" }));
    setSteering(false);
  };
  const about = [
    ...world.frameworks,
    trans._n("%1 rank", "%1 ranks", world.size),
    ...(world.nodes > 1 ? [trans.__("%1 nodes", world.nodes)] : []),
    ...(world.left === "" ? [] : [world.left]),
    ...(world.id === ASKED ? [] : [trans.__("up %1", clock(Math.max(0, now / 1000 - world.started)))]),
  ];
  return (
    <li className="dtrain-world" data-selected={chosen} data-world={world.id}>
      <div className="dtrain-world-head">
        <button
          className="dtrain-name"
          aria-pressed={chosen}
          title={trans.__("Show its ranks and losses. Drag it into a notebook to attach.")}
          onClick={select}
          onMouseDown={(event) => {
            dragCode(event, code, world.name);
          }}
        >
          {world.name !== "" ? world.name : trans.__("new world")}
        </button>
        <span className="dtrain-state" data-state={paused ? "paused" : works ? "working" : world.state}>
          {stateWords(world, trans)}
        </span>
      </div>
      <small>{about.join(" · ")}</small>
      <small className={world.driver?.there === false && up ? "dtrain-orphan" : ""} title={world.driver?.words}>
        {useOf(world, now, trans)}
      </small>
      {world.state === "starting" && (
        <small role="status">{world.progress !== "" ? world.progress : trans.__("asking the server…")}</small>
      )}
      {world.words !== "" && world.state !== "running" && <small className="dtrain-trouble">{world.words}</small>}
      {up && (world.dead > 0 || (world.driver === null && actions.opensNotebooks)) && (
        <div className="dtrain-tools-row">
          {world.driver === null && actions.opensNotebooks && (
            <button className="dtrain-step" onClick={() => void actions.openNotebook(world)}>
              {trans.__("Open a notebook on it")}
            </button>
          )}
          {world.dead > 0 && (
            <button className="dtrain-step" onClick={() => void actions.heal(world)}>
              {trans._n("Replace the dead rank…", "Replace the dead ranks…", world.dead)}
            </button>
          )}
        </div>
      )}
      {world.id !== ASKED && (
        <div className="dtrain-tools-row" role="group" aria-label={trans.__("Actions for %1", world.name)}>
          <Tool
            icon={stopIcon}
            label={trans.__("Interrupt the cell on all ranks of %1", world.name)}
            disabled={!up || !works}
            run={() => void actions.interrupt(world)}
          />
          {up && run !== undefined && (
            <>
              <Tool
                icon={paused ? runIcon : pauseIcon}
                label={
                  steerer.instead !== ""
                    ? steerer.instead
                    : paused
                      ? trans.__("Let the loop of %1 go on", world.name)
                      : trans.__("Pause the loop of %1", world.name)
                }
                disabled={steering || steerer.instead !== ""}
                run={() => void pause()}
              />
              <Tool
                icon={codeIcon}
                label={
                  steerer.instead !== ""
                    ? steerer.instead
                    : trans.__("Run code between two steps of the loop of %1…", world.name)
                }
                disabled={steerer.instead !== ""}
                className="dtrain-between-tool"
                run={() => {
                  setCoding(coding === run.number ? null : run.number);
                }}
              />
            </>
          )}
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
      )}
      {coding !== null && world.runs.some(({ number }) => number === coding) && (
        <SteeringOf
          world={world}
          run={coding}
          steerer={steerer}
          worlds={actions.worlds}
          close={() => {
            setCoding(null);
          }}
        />
      )}
    </li>
  );
}

function stateWords(world: World, trans: TranslationBundle): string {
  if (world.state === "running" && world.dead > 0) return trans._n("%1 rank dead", "%1 ranks dead", world.dead);
  return stateOf(world, trans);
}

/** Who uses the world, or when it stops by itself. */
function useOf(world: World, now: number, trans: TranslationBundle): string {
  const { driver } = world;
  if (driver?.there === true) return trans.__("used by %1", driver.name);
  if (world.lease_end === null) return "";
  const seconds = Math.max(0, world.lease_end - now / 1000);
  const left = seconds < 60 ? trans.__("%1 s", Math.floor(seconds)) : trans.__("%1 min", Math.round(seconds / 60));
  if (driver === null) return trans.__("not attached: stops in %1 unless a notebook attaches", left);
  return driver.kernel === ""
    ? trans.__("its program is gone: attach, or it stops in %1", left)
    : trans.__("its notebook is gone: attach, or it stops in %1", left);
}
