import { type JSX } from "react";
import type { TranslationBundle } from "@jupyterlab/translation";
import type { Theme } from "../../theme";
import { h } from "../jsx";
import type { RunsClient } from "./client";

export function Differences(props: {
  ids: readonly number[];
  client: RunsClient;
  trans: TranslationBundle;
  theme: Theme;
  attempt: (task: () => Promise<unknown>) => Promise<boolean>;
}): JSX.Element {
  return <p>{props.ids.join()}</p>;
}
