/** The field of the sidebar for code that runs between two steps of a world's loop. */

import { type JSX, useEffect, useRef } from "react";
import { Steering, type Steerer } from "../steering";
import { h } from "./jsx";
import type { World } from "./messages";
import type { Worlds } from "./worlds";

export function SteeringOf(props: {
  world: World;
  /** The number of the run. */
  run: number;
  steerer: Steerer;
  worlds: Worlds;
  close: () => void;
}): JSX.Element {
  const { world, run, worlds } = props;
  const { id } = world;
  const place = useRef<HTMLDivElement>(null);
  const current = useRef(props);
  current.current = props;
  useEffect(() => {
    const shown = new Steering(
      () => current.current.steerer,
      () => {
        const row = place.current?.closest("li");
        current.current.close();
        row?.querySelector<HTMLElement>(".dtrain-between-tool")?.focus();
      },
    );
    place.current!.replaceChildren(shown.node);
    worlds.want(shown, id);
    let begun = false;
    const draw = (): void => {
      const model = worlds.of(id).run(run);
      if (model === null) return; // the stream is to bring it
      shown.update(model, model.outcome === "running");
      if (!begun) shown.focus();
      begun = true;
    };
    draw();
    worlds.changed.connect(draw);
    return () => {
      worlds.changed.disconnect(draw);
      worlds.want(shown, null);
    };
  }, [worlds, id, run]);
  return <div ref={place} className="dtrain-run" />;
}
