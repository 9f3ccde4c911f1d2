/** The Prompts section of the sidebar: what ranks of all worlds ask a person, with fields where this page can answer. */

import { type JSX, useEffect, useReducer, useRef } from "react";
import type { RunModel } from "../model";
import { PromptRows, type Answerer } from "../prompts";
import type { Steerer } from "../steering";
import { Fragment, h } from "./jsx";
import type { World } from "./messages";
import { Section, type SectionProps } from "./section";
import type { Worlds } from "./worlds";

/** Milliseconds for which the prompts of a run stay in the section: a debugger asks again after each command. */
const STAYS = 2500;

/** Whether the notebook of this kernel is open in this page: only the notebook that drives a world answers its ranks. */
type Has = (kernel: string) => boolean;

/** Why this page cannot do `what` in a world, and who can, as a sentence; empty if it can. */
function insteadOf(worlds: Worlds, world: string, has: Has, what: string): string {
  const found = worlds.find(world);
  const driver = found?.driver ?? null;
  if (driver === null) {
    return `No notebook controls this world. To ${what}, attach one: %distributed attach ${found?.name ?? ""} --control`;
  }
  const { kernel, name, words } = driver;
  if (kernel === "") return `Only ${words} can ${what}.`;
  return has(kernel) ? "" : `Open ${name} to ${what}.`;
}

/** The answers of this page to the prompts of a world. */
export function answererOf(worlds: Worlds, world: string, has: Has): Answerer {
  return {
    get instead() {
      return insteadOf(worlds, world, has, "answer");
    },
    answer: (run, prompts, text) => worlds.answer(world, run, prompts, text, worlds.find(world)?.driver?.kernel ?? ""),
  };
}

/** The hand of this page on the loops of a world. */
export function steererOf(worlds: Worlds, world: string, has: Has): Steerer {
  return {
    get instead() {
      return insteadOf(worlds, world, has, "steer this loop");
    },
    steer: (run, act) => worlds.steer(world, run, act, worlds.find(world)?.driver?.kernel ?? ""),
  };
}

/** Whether ranks of a world are at a prompt. */
function asks(world: World): boolean {
  return world.runs.some((run) => (run.states.asking ?? 0) > 0);
}

export function Prompts({ actions, trans }: SectionProps): JSX.Element | null {
  const { worlds } = actions;
  const seen = useRef(new Map<RunModel, number>());
  const asking = worlds.worlds.filter(asks).map((world) => world.id);
  const ids = asking.join();
  useEffect(() => {
    const wanted = ids === "" ? [] : ids.split(",");
    for (const id of wanted) worlds.want(`prompts:${id}`, id);
    return () => {
      for (const id of wanted) worlds.want(`prompts:${id}`, null);
    };
  }, [worlds, ids]);
  const now = performance.now();
  const shown = worlds.worlds.flatMap((world) =>
    worlds
      .of(world.id)
      .runs.filter((run) => run.outcome === "running")
      .map((run) => ({ world, run })),
  );
  for (const { run } of shown) if (run.asked !== "") seen.current.set(run, now);
  for (const [run, last] of seen.current) if (now > last + STAYS) seen.current.delete(run);
  const found = shown.filter(({ run }) => seen.current.has(run));
  if (found.length === 0) return null;
  return (
    <Section title={trans.__("Prompts")} note={String(found.length)}>
      {found.map(({ world, run }) => (
        <Fragment key={`${world.id}/${run.run}`}>
          <small className="dtrain-run-title">{trans.__("Run %1 of %2", run.run, world.name)}</small>
          <PromptsOf
            run={run}
            answerer={answererOf(worlds, world.id, (kernel) => actions.hasKernel(kernel))}
            world={world.id}
          />
        </Fragment>
      ))}
    </Section>
  );
}

/** The prompts of one run. */
function PromptsOf({ run, answerer, world }: { run: RunModel; answerer: Answerer; world: string }): JSX.Element {
  const [, draw] = useReducer((drawn: number) => drawn + 1, 0);
  const place = useRef<HTMLDivElement>(null);
  const rows = useRef<PromptRows | null>(null);
  const current = useRef(answerer);
  current.current = answerer;
  useEffect(() => {
    const made = new PromptRows(() => current.current);
    rows.current = made;
    place.current!.replaceChildren(made.node);
    const stop = run.listen(draw);
    return () => {
      stop();
      made.destroy();
      rows.current = null;
    };
  }, [run, world]);
  useEffect(() => {
    const goes = run.outcome === "running";
    rows.current?.update(run.run, goes ? run.asked : "", goes ? run.prompts : []);
  });
  return <div ref={place} className="dtrain-run" />;
}
