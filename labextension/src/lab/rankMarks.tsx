/** React components for the states of ranks: the mark of one state, and the strip of all ranks. */

import { type JSX, useEffect, useRef } from "react";
import { RankStrip, type Shown } from "../rankStrip";
import { SHAPES, type Look } from "../standing";
import { h } from "./jsx";

/** The mark of a state, which differs in colour and shape. */
export function Mark({ look }: { look: Look }): JSX.Element {
  const [path, filled, words] = SHAPES[look];
  return (
    <span className="dtrain-mark" data-state={look} title={words}>
      <svg viewBox="0 0 12 12" aria-hidden="true" className={filled ? "dtrain-icon dtrain-icon-filled" : "dtrain-icon"}>
        <path d={path} />
      </svg>
    </span>
  );
}

/** All ranks as marks, which fit some hundred ranks into the sidebar. */
export function Strip(props: { shown: Shown; chosen: number | null; choose: (rank: number) => void }): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  const strip = useRef<RankStrip | null>(null);
  const choose = useRef(props.choose);
  choose.current = props.choose;
  useEffect(() => {
    strip.current = new RankStrip((rank) => {
      choose.current(rank);
    });
    place.current!.replaceChildren(strip.current.node);
  }, []);
  useEffect(() => {
    strip.current?.update(props.shown, props.chosen, NOTHING);
  });
  return <div ref={place} className="dtrain-run dtrain-strip-only" />;
}

const NOTHING: ReadonlyMap<number, string> = new Map<number, string>();
