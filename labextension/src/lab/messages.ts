/** The types of the server's messages and answers; `jupyter_dtrain/server` writes them. */

export type {
  CellOutputs,
  HeldRow,
  HeldVariables,
  Driver,
  Column,
  Item,
  Loss,
  Message,
  PanelProfile,
  ProfileProgress,
  RunColumns,
  RunSummary,
  StartFailure,
  StoredRun,
  World,
  WorldPhase as WorldState,
  WorldRank as RankRow,
  RunListing,
  RunPage,
  RunDifferences,
  MediaIndex,
  MediaName,
  MediumHead,
  ColumnHead,
  ColumnChoice,
  RunGroup,
  TableView,
  RunDifference as Difference,
  CodeDifference,
  ConfigValue,
  LineagePart,
  RunLink,
  PageFailure,
  PageRank,
  PageEnvironment,
  RunCommit,
  PageHappening,
  PageFile,
  PageTail,
  PageTracker,
} from "../generated";

export interface Launcher {
  name: string;
  title: string;
  cores: number;
  gpus: number;
  default_ranks: number;
  schema: { properties: Record<string, Property> };
}

export interface Property {
  title: string;
  description: string;
  type: "integer" | "number" | "boolean" | "string" | "object";
  /** Whether it is not folded away. */
  main?: boolean;
  default?: string;
  enum?: string[];
  minimum?: number;
  maximum?: number;
}
