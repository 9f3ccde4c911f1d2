import { type JSX } from "react";
import type { TranslationBundle } from "@jupyterlab/translation";
import type { Theme } from "../../theme";
import { h } from "../jsx";
import type { RunsClient } from "./client";

export function RunPage(props: {
  id: number;
  client: RunsClient;
  trans: TranslationBundle;
  theme: Theme;
  attempt: (task: () => Promise<unknown>) => Promise<boolean>;
  open: (id: number) => void;
  back: () => void;
}): JSX.Element {
  return <button onClick={props.back}>{`Back from ${props.id}`}</button>;
}
