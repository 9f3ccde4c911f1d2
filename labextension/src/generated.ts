// Made by scripts/front_end_types.py from Python's structs and parsers: change those.

export type RunRankState = "asking" | "dead" | "error" | "held" | "idle" | "interrupted" | "ok" | "released" | "running" | "sent" | "stopped" | "unreachable" | "waiting";
export type RunOutcome = "error" | "interrupted" | "lost" | "ok" | "running";
export type WorldRankState = "dead" | "idle" | "running" | "starting" | "stopped" | "unreachable" | "waiting";
export type WorldPhase = "ending" | "failed" | "running" | "starting" | "unreachable";
export type ItemKind = "apart" | "asks" | "dead" | "ended" | "failed" | "hung" | "nan" | "slow" | "start";
export type ItemLevel = "error" | "info" | "warning";
export type Steps = string | [number, number, number];

/**
 * One rank; a row leaves out empty cells at its end.
 * `memory`: Bytes.
 * `cpu`: Percent of a processor.
 * `gpu`: Percent.
 * `gpu_used`: Bytes.
 * `gpu_total`: Bytes.
 * `pace`: Seconds per step.
 * `host_memory`: Bytes of memory that its host has.
 * `workers`: Processes that its code has started; null without any.
 * `workers_memory`: Bytes of memory that they hold.
 * `slower`: By which share its steps take longer than the others' median; null unless it is the slow rank.
 */
export type RankRow = [
  rank: number,
  node: number,
  state: RunRankState,
  step?: number | null,
  memory?: number | null,
  cpu?: number | null,
  gpu?: number | null,
  gpu_used?: number | null,
  gpu_total?: number | null,
  pace?: number | null,
  host_memory?: number | null,
  workers?: number | null,
  workers_memory?: number | null,
  slower?: number | null,
];

/**
 * How far one rank is in a progress bar.
 * `rate`: Iterations per second.
 * `ended`: 1 if the loop has ended, else 0.
 */
export type BarPart = [
  rank: number,
  done: number | null,
  total: number | null,
  rate: number | null,
  ended: number,
];

/** A progress bar of all ranks. */
export type Bar = [
  number: number,
  name: string,
  parts: BarPart[],
];

/**
 * One sentence about how a run reads its data.
 * `fault`: 1 if it is a warning, else 0.
 * `anchor`: Of the notice that explains a warning, see :mod:`.notices`.
 */
export type ReadingLine = [
  words: string,
  fault: number,
  anchor?: string,
];

/**
 * How some ranks spend the time of a step: the mean of ranks that are alike.
 * `ranks`: In words, such as `ranks 0-3,5`.
 * `count`: How many they are.
 * `seconds`: Of a step.
 * `shares`: 0 to 1, of the parts in their order.
 * `slow`: 1 if they make the others wait, or cause what the first sentence says; else 0.
 * `calls`: 0 to 1, of the calls in their order: what communication consists of.
 */
export type StepRow = [
  ranks: string,
  count: number,
  seconds: number,
  shares: number[],
  slow: number,
  calls?: number[],
];

/**
 * One reason why the steps of a run are slow, or why its memory grows.
 * `kind`: What it is, such as `data` or `memory`; the rules in docs/reference/slow-steps.md have the same names.
 * `ranks`: The ranks that cause it.
 * `words`: The evidence, as a sentence.
 * `advice`: What to try, as a sentence.
 * `share`: The share of a step, 0 to 1, that it costs; 0 for memory.
 */
export type SlowStep = [
  kind: string,
  ranks: number[],
  words: string,
  advice: string,
  share: number,
];

/**
 * How ranks spent the time of their steps over the run, in stretches of equally many steps.
 * `ranks`: Empty for the mean over all.
 * `first`: The step at which the first stretch begins.
 * `width`: Steps of a stretch.
 * `seconds`: Of a step, for each stretch: little-endian float32 in base64; NaN where no steps were seen.
 * `shares`: Of each part after the other, for each stretch: bytes in base64, where 255 is a whole step.
 */
export type Course = [
  ranks: number[],
  first: number,
  width: number,
  seconds: string,
  shares: string,
];

/** Where the time of a run's steps goes. */
export interface StepTimePart {
  /** The parts that there are, in the order in which they are drawn. */
  parts: string[];
  rows: StepRow[];
  /** Of all ranks. */
  mean: StepRow;
  /** Why the steps are slow, the costliest reason first. */
  slow?: SlowStep[];
  /** Over the run: the mean of all ranks first. */
  courses?: Course[];
  /** Batches of a step, whose gradients are accumulated. */
  batches?: number;
  /** Whether times are those of the host's clock, while a GPU computes. */
  on_host?: boolean;
  /** The calls in which ranks wait for each other, such as `all_gather`, the longest first. */
  calls?: string[];
}

/** A step that is marked in all charts, and why. */
export type Mark = [
  step: number,
  words: string,
];

/** What ranks ask a person, all of them the same. */
export interface PromptPart {
  ranks: number[];
  /** The number that the question has on each of them. */
  numbers: number[];
  kind: "debugger" | "input" | "password";
  text: string;
  /** The line that asks, on the first of them. */
  place: string;
  /** What a debugger has printed, on the first of them. */
  said: string;
}

/** What a person has asked of the loop of a run, and what became of it. */
export interface RecordedAct {
  /** The number of the act, which counts the acts of the world. */
  number: number;
  /** What was asked for, such as `set opt.lr=1e-4`. */
  words: string;
  /** Who has asked for it, such as the name of a notebook. */
  by: string;
  /** The step after which it was done, on all ranks, counted from the beginning of the cell. */
  step: number;
  /** The newest step of the metrics by then, as in charts; None where the run had logged none. */
  at: number | null;
  /** When the first rank began it, in seconds since the epoch. */
  time: number;
  /** What became of it, as a sentence or several; empty while ranks are at it. */
  said: string;
  /** Whether it has raised on a rank. */
  failed?: boolean;
}

/**
 * The points of one rank.
 * `values`: Little-endian float32 in base64.
 */
export type Line = [
  rank: number,
  steps: Steps,
  values: string,
];

/** Statistics over all ranks: columns of little-endian float32 in base64. */
export interface BandPart {
  steps: string;
  mean: string;
  low: string;
  high: string;
}

/** The newest value of each rank. */
export interface LastPart {
  ranks: number[];
  values: string;
  /** The metric's last value, the mean over the ranks that have come as far as any; older files lack it. */
  value?: string;
}

/** A point that is no number. */
export type BadPoint = [
  rank: number,
  step: number,
  kind: string,
];

/** One metric. */
export interface MetricPart {
  name: string;
  series: Line[];
  /** Present if the series were thinned. */
  band?: BandPart;
  /** Present if some ranks have no series. */
  last?: LastPart;
  bad?: BadPoint[];
}

/**
 * The actions of one rank in a step of a pipeline.
 * `actions`: Kind, stage, micro-batch, start and length of each as uint16 in base64.
 */
export type Lane = [
  rank: number,
  stages: number[],
  actions: string,
];

/** One step of a pipeline. */
export interface PipelinePart {
  schedule: string;
  step: number;
  /** The number of ranks; `lanes` may have fewer. */
  ranks: number;
  stages: number;
  microbatches: number;
  seconds: number;
  /** The caption, with the size of the bubble. */
  words: string;
  lanes: Lane[];
  /** Whether the actions include sends and receives. */
  transfers?: boolean;
}

/** A run as the front end draws it. */
export interface RunDocument {
  version: number;
  run: number;
  size: number;
  outcome: RunOutcome;
  elapsed: number;
  nodes: string[];
  ranks: RankRow[];
  /** The end of each rank that was lost or has failed, in words, and the call in which a rank waits for others. */
  words: Record<string, string>;
  bars: Bar[];
  /** For each rank how far its events are included, to compare what came on different ways; only in live runs. */
  reach?: number[];
  /** The batch of all ranks, and whether they read the same data. */
  reading?: ReadingLine[];
  /** Where the time of its steps goes, and why they are slow; missing while no steps were seen. */
  step_time?: StepTimePart;
  /** More about the end of a run that ended well, such as `rank 1 was replaced`; mostly empty. */
  remark?: string;
  marks?: Mark[];
  /** What ranks ask a person; only in live runs. */
  prompts?: PromptPart[];
  /** Which ranks are at a prompt, and which wait for that, as a sentence; empty where none is. */
  asked?: string;
  /** The newest acts of persons on its loop, oldest first. */
  acts?: RecordedAct[];
  /** The step after which all ranks are paused; missing while they are not. */
  paused?: number | null;
  /** True if ranks logged faster than the connection can carry; the document then has only extremes. */
  thinned?: boolean;
  /** The step of the rank that is furthest ahead. */
  step?: number | null;
  /** The mean from its first step on. */
  steps_per_second?: number | null;
  /** The mean of all ranks together, in the same time. */
  samples_per_second?: number | null;
  metrics: MetricPart[];
  /** Metrics that are not in the document; missing in old notebooks. */
  left_out?: number;
  pipelines?: PipelinePart[];
  /** The number of the first message that the document does not include. */
  seq?: number;
}

/** A document without its metrics: what changes all the time. */
export interface Status {
  version: number;
  run: number;
  size: number;
  outcome: RunOutcome;
  elapsed: number;
  nodes: string[];
  ranks: RankRow[];
  /** The end of each rank that was lost or has failed, in words, and the call in which a rank waits for others. */
  words: Record<string, string>;
  bars: Bar[];
  /** For each rank how far its events are included, to compare what came on different ways; only in live runs. */
  reach?: number[];
  /** The batch of all ranks, and whether they read the same data. */
  reading?: ReadingLine[];
  /** Where the time of its steps goes, and why they are slow; missing while no steps were seen. */
  step_time?: StepTimePart;
  /** More about the end of a run that ended well, such as `rank 1 was replaced`; mostly empty. */
  remark?: string;
  marks?: Mark[];
  /** What ranks ask a person; only in live runs. */
  prompts?: PromptPart[];
  /** Which ranks are at a prompt, and which wait for that, as a sentence; empty where none is. */
  asked?: string;
  /** The newest acts of persons on its loop, oldest first. */
  acts?: RecordedAct[];
  /** The step after which all ranks are paused; missing while they are not. */
  paused?: number | null;
  /** True if ranks logged faster than the connection can carry; the document then has only extremes. */
  thinned?: boolean;
  /** The step of the rank that is furthest ahead. */
  step?: number | null;
  /** The mean from its first step on. */
  steps_per_second?: number | null;
  /** The mean of all ranks together, in the same time. */
  samples_per_second?: number | null;
}

/**
 * The points of one metric of one rank; evenly spaced steps are their first and their distance.
 * `name`: Its place in the names.
 */
export type SeriesRow = [
  name: number,
  rank: number,
  count: number,
  first?: number,
  distance?: number,
];

/** The changes in a run since the last message. */
export interface News {
  /** Counts the messages with points. */
  seq: number;
  status: Status;
  /** All pipelines; present if one of them has a newer step. */
  pipelines?: PipelinePart[];
  names?: string[];
  series?: SeriesRow[];
}

/** A cause, and the share of time that it takes. */
export type ShareOfTime = [
  cause: string,
  share: number,
];

/** The measurements at one size. */
export interface SizeRow {
  ranks: number;
  /** The median; None where the cell failed or was not run. */
  seconds: number | null;
  /** The shortest and longest time; None for less than two runs. */
  low: number | null;
  high: number | null;
  speedup: number | null;
  speedup_low: number | null;
  speedup_high: number | null;
  linear: number;
  efficiency: number | null;
  batch: number | null;
  shares: ShareOfTime[];
}

/** A scaling report as the front end draws it. */
export interface ScalingDocument {
  version: number;
  summary: string;
  sizes: SizeRow[];
  conclusions: string[];
}

/** Why a world did not start. */
export interface StartFailure {
  /** Why the world did not start, as a sentence. */
  reason: string;
  /** What helps, as a sentence; empty if nothing is known to. */
  fix: string;
  /** The lines of a log that show the reason; empty if no log says more. */
  log: string;
}

/** The client that drives a world. */
export interface Driver {
  pid: number;
  /** The file of its notebook, or its process. */
  name: string;
  /** Both. */
  words: string;
  /** The id of its Jupyter kernel; empty if the driver is not a kernel. */
  kernel: string;
  there: boolean;
  /** Whether its plain cells run on the ranks too. */
  auto: boolean;
}

/** A run of a world. */
export interface RunSummary {
  number: number;
  /** The id of its cell in the notebook; empty if unknown. */
  cell: string;
  /** The step of the rank that is furthest ahead. */
  step: number | null;
  ranks: number[];
  outcome: RunOutcome;
  /** Seconds since the epoch. */
  started: number;
  ended: number | null;
  /** The seconds that it took; null while it goes on. */
  elapsed: number | null;
  /** The number of ranks in each state. */
  states: Record<string, number>;
}

/** One world. */
export interface World {
  id: string;
  name: string;
  cwd: string;
  state: WorldPhase;
  /** The reason for its state; empty if the state needs none. */
  words: string;
  /** How far its start has come, and what it waits for; empty unless it starts. */
  progress: string;
  /** Why its start has failed; null unless it has. */
  failure: StartFailure | null;
  size: number;
  ready: number;
  nodes: number;
  dead: number;
  frameworks: string[];
  started: number;
  /** When the world ends unless a client drives it; null while one does. */
  lease_end: number | null;
  /** The time until a scheduler takes its nodes away, in words; empty where none does. */
  left: string;
  driver: Driver | null;
  /** The newest, which may have ended. */
  run: RunSummary | null;
  /** Those that go on, oldest first. */
  runs: RunSummary[];
}

/** All worlds. */
export interface WorldsMessage {
  type: "worlds";
  worlds: World[];
}

/** One thing to report, or several that are equal but for their numbers. */
export interface Item {
  /** Identifies the item, however often a look repeats its finding. */
  id: string;
  kind: ItemKind;
  level: ItemLevel;
  /** The world's id. */
  world: string;
  /** The world's name. */
  name: string;
  run: number | null;
  /** The id of the run's cell in the notebook; empty if there is none or it is unknown. */
  cell: string;
  ranks: number[];
  words: string;
  /** More lines; empty if there are none. */
  detail: string;
  /** Seconds since the epoch. */
  time: number;
  /** The number of equal findings; everything else is the newest's, and `ranks` are those of all. */
  count: number;
}

/** All findings that need the person's attention. */
export interface AttentionMessage {
  type: "attention";
  items: Item[];
}

/**
 * One rank of a world.
 * `words`: Why the rank is dead; empty if it is not.
 * `waits`: The call in which it waits for other ranks; empty if it does not.
 * `fresh`: Whether another process was this rank in its newest run, so that nothing of that run is this one's.
 */
export type WorldRank = [
  rank: number,
  node: number,
  host: string,
  local_rank: number,
  device: string,
  pid: number,
  state: WorldRankState | RunRankState,
  words: string,
  waits: string,
  role: string,
  fresh: boolean,
];

/** All ranks of a world that the page watches. */
export interface RanksMessage {
  type: "ranks";
  world: string;
  ranks: WorldRank[];
}

/** A run of a world that the page watches, from its beginning: one that goes on, or the newest. */
export interface RunMessage {
  type: "run";
  world: string;
  source: string;
  document: RunDocument;
}

/** The changes in a run since the last message about it. */
export interface NewsMessage {
  type: "news";
  /** Counts the messages with points. */
  seq: number;
  status: Status;
  /** All pipelines; present if one of them has a newer step. */
  pipelines?: PipelinePart[];
  names?: string[];
  series?: SeriesRow[];
  world: string;
  /** The values of all series, one after the other, as little-endian float32 in base64. */
  values?: string;
  /** The steps of the series whose steps are not even, as little-endian float64 in base64. */
  steps?: string;
}

/** A loss of a stored run. */
export interface Loss {
  name: string;
  /** The newest value, the mean over the ranks that have come as far as any; None where one is not finite. */
  last: number | null;
  /** The lowest finite value, on whichever rank. */
  best: number | null;
  /** The step of the newest value. */
  step: number;
}

/** A run in the store. */
export interface StoredRun {
  /** For requests; people call it WORLD/NUMBER. */
  id: number;
  name: string;
  note: string;
  tags: string[];
  /** Whether neither its age nor a request to delete it removes it. */
  kept: boolean;
  world: string;
  number: number;
  /** How many ran its cell, of the `size` ranks of its world. */
  ranks: number;
  size: number;
  outcome: RunOutcome;
  remark: string;
  /** How it ended, in words. */
  ending: string;
  /** Seconds since the epoch. */
  started: number;
  elapsed: number;
  /** Its cell, cut where it is long. */
  source: string;
  losses: Loss[];
  /** The line of its cell that tells it from others. */
  code: string;
  /** The name that a person gave several runs in common; empty for none. */
  group: string;
  /** The heading above its cell; empty where that is not known. */
  heading: string;
  /** The file of its notebook; empty where that is not known. */
  notebook: string;
  /** The number of its cell in the notebook. */
  cell: number | null;
  /** The id of the run whose training it goes on with, which may be deleted. */
  resumes: number | null;
  /** Whether it is a training; lists of trainings leave the others out. */
  training: boolean;
  /** Its value in each column that was asked for, in their order; null where it has none. */
  values: (string | number | boolean | null)[];
  /** The place of its group in the answer's `groups`; null where the list is not grouped. */
  place: number | null;
}

/** A column of the list of runs. */
export interface ColumnHead {
  /** By which a request asks for it and sorts by it, such as `config:lr` or `metric:val_acc:max`. */
  key: string;
  /** For people, such as `lr` or `highest val_acc`. */
  title: string;
  /** Whether all its values are numbers. */
  numeric: boolean;
}

/** The runs that have one value in common. */
export interface RunGroup {
  value: string | number | boolean | null;
  /** The value, for people. */
  words: string;
  /** How many, on all pages of the list together. */
  runs: number;
  /** The mean of each asked column over them; null where that is not numeric. */
  means: (number | null)[];
}

/** A configuration value or a metric that some of the listed runs have. */
export interface ColumnChoice {
  name: string;
  /** How many have it. */
  runs: number;
  /** How many different values they have; of metrics, 0. */
  distinct: number;
  numeric: boolean;
}

/** How a person wants to see the list of runs, saved under a name. */
export interface TableView {
  name: string;
  where: string;
  sort: string[];
  columns: string[];
  group: string;
  everything: boolean;
}

/** A part of the list of runs. */
export interface RunListing {
  /** Changes whenever anything in the store does. */
  version: string;
  /** Whether the store still has the version that the request named; the rest is empty then. */
  same: boolean;
  runs: StoredRun[];
  /** How many runs the conditions let through. */
  total: number;
  /** How many runs are trainings, whatever the filter says. */
  trainings: number;
  /** How many runs there are, trainings or not. */
  all: number;
  /** Those that the request asked for, in its order. */
  columns: ColumnHead[];
  /** In the order of the list; empty where it is not grouped. */
  groups: RunGroup[];
  /** The configuration values that listed runs have, whatever the filter says: those that differ first. */
  configs: ColumnChoice[];
  /** The metrics that they have. */
  metrics: ColumnChoice[];
  /** All saved views, by name. */
  views: TableView[];
  /** A name in the filter that no listed run has, as a sentence; mostly empty. */
  hint: string;
}

/** A value of a run's configuration. */
export interface ConfigValue {
  name: string;
  /** JSON; `…` where it was too long to be kept. */
  value: unknown;
  /** `library`, `cell`, `sent` or `set`. */
  origin: string;
}

/** Why a run failed on some ranks. */
export interface PageFailure {
  ranks: number[];
  /** One line. */
  words: string;
  /** As the rank printed it; empty where there is none. */
  traceback: string;
  /** Whether it only follows from the failure of another rank. */
  echo: boolean;
}

/** A rank of a stored run. */
export interface PageRank {
  rank: number;
  host: string;
  pid: number;
  outcome: RunOutcome;
  /** Why it is lost, or what is wrong with its log; mostly empty. */
  words: string;
  /** Seconds; null while it works, and where it was lost. */
  elapsed: number | null;
  /** Bytes of text. */
  printed: number;
}

/** What the processes of some ranks ran in. */
export interface PageEnvironment {
  ranks: number[];
  python: string;
  packages: Record<string, string>;
  devices: string[];
  command: string[];
  folder: string;
  platform: string;
  cpus: number;
  /** Bytes. */
  memory: number;
}

/** A commit, and the difference between it and the working folder. */
export interface RunCommit {
  hash: string;
  /** Empty where HEAD is on none. */
  branch: string;
  /** The address of the repository that it is from, without who may go there; empty for none. */
  remote: string;
  /** The first line. */
  message: string;
  /** Whether files that git knows differed from it, or there were files that git neither knows nor ignores. */
  dirty: boolean;
  /** The differences of the files that git knows; at most :data:`LARGEST` bytes. */
  diff: string;
  /** Sentences on what :attr:`diff` leaves out. */
  notes: string[];
  /** Files and folders that git neither knows nor ignores: names, at most :data:`NAMES`. */
  untracked: string[];
  /** The folder of the repository. */
  folder: string;
}

/** Something that happened to a run. */
export interface PageHappening {
  /** Since the run's start; null where it is not known. */
  seconds: number | null;
  step: number | null;
  /** A sentence. */
  words: string;
}

/** A file or folder that belongs to a run. */
export interface PageFile {
  title: string;
  path: string;
  host: string;
  /** Whether it is still there; of another host, true means that it is not known. */
  there: boolean;
}

/** The end of what some ranks printed, which is the same for all of them. */
export interface PageTail {
  ranks: number[];
  lines: string[];
  /** Whether they printed more before it. */
  more: boolean;
}

/** What a run has logged under one name beside numbers. */
export interface MediaName {
  name: string;
  /** `image`, `figure`, `histogram`, `text`, `table` or `audio`; empty where nothing was kept. */
  kind: string;
  ranks: number[];
  /** Those that the store keeps, in order. */
  steps: number[];
  kept: number;
  /** More than `kept` where some were left out. */
  logged: number;
}

/** Another run that a page names. */
export interface RunLink {
  id: number;
  /** WORLD/NUMBER. */
  label: string;
  name: string;
}

/** A tracker that gets the run. */
export interface PageTracker {
  tracker: string;
  target: string;
  done: boolean;
  /** Why it does not go on; mostly empty. */
  words: string;
}

/** All of a stored run but its curves (`/metrics`) and its picture (`/dtrain/runs/ID`). */
export interface RunPage {
  run: StoredRun;
  /** The whole cell. */
  source: string;
  config: ConfigValue[];
  /** The cause first. */
  failures: PageFailure[];
  ranks: PageRank[];
  /** One for all ranks that run in the same. */
  environments: PageEnvironment[];
  commit: RunCommit | null;
  happenings: PageHappening[];
  files: PageFile[];
  /** Lines for a notebook that run it again. */
  cells: string;
  /** Lines for a shell that run it again as a job; empty where it was no cell of a known notebook. */
  job: string;
  tails: PageTail[];
  media: MediaName[];
  /** The runs that it goes on with, oldest first, and itself as the last; empty where it goes on with none. */
  lineage: RunLink[];
  /** The runs that go on with it. */
  continued: RunLink[];
  trackers: PageTracker[];
}

/** Something in which runs differ. */
export interface RunDifference {
  name: string;
  /** Of each run, in their order; null where it has none. */
  values: unknown[];
}

/** How the code of a run differs from that of the first run. */
export interface CodeDifference {
  run: number;
  /** `cell`, or `uncommitted changes`. */
  title: string;
  /** Lines as `diff -u` writes them; bounded. */
  diff: string;
}

/** What differs between runs, and how much is the same. */
export interface RunDifferences {
  runs: RunLink[];
  config: RunDifference[];
  /** Values of the configuration that all have in common. */
  same: number;
  /** Of Python, packages, devices and hosts. */
  versions: RunDifference[];
  /** Commit, branch, and whether files differed. */
  commits: RunDifference[];
  code: CodeDifference[];
  /** Last, lowest and highest of each metric, such as `lowest loss`. */
  metrics: RunDifference[];
}

/** One thing that a run has logged; its data is at `/dtrain/media/ID`. */
export interface MediumHead {
  id: number;
  name: string;
  kind: string;
  rank: number;
  step: number;
  /** Counts what was logged together. */
  number: number;
  /** Since the run's start. */
  seconds: number;
  mime: string;
  caption: string;
  /** How the data is less than what was logged; mostly empty. */
  note: string;
  bytes: number;
}

/** What a run has logged beside numbers. */
export interface MediaIndex {
  names: MediaName[];
  /** Of the name that the request asked for, by step, rank and number; empty where it asked for none. */
  media: MediumHead[];
  /** Further ones, where there are too many for one answer. */
  left_out: number;
}

/** Points of one quantity on one rank, in the order in which it logged them: three lists of equal length. */
export interface Column {
  name: string;
  rank: number;
  /** None where a resource was measured before the first step. */
  steps: (number | null)[];
  /** Seconds since the run's start. */
  times: number[];
  /** None for what is NaN or infinite. */
  values: (number | null)[];
}

/** A run of a chain in which each goes on with the one before it. */
export interface LineagePart {
  id: number;
  /** WORLD/NUMBER. */
  label: string;
  name: string;
  /** The step from which on the points are its own. */
  first_step: number;
  /** The seconds of training before it, which its points' times include. */
  since: number;
}

/** The points that a stored run logged, and those of what it used, for charts. */
export interface RunColumns {
  id: number;
  metrics: Column[];
  resources: Column[];
  /** Where the time of its steps went; null where no steps were seen. */
  step_time: StepTimePart | null;
  /** The epoch of each rank by step, where it logged one: an axis, which is in no chart. */
  epochs: Column[];
  /** The id of the run that it goes on with. */
  resumes: number | null;
  /** The step with which it goes on. */
  first_step: number;
  /** The runs whose points the metrics have, oldest first, where the request asked for the whole chain. */
  lineage: LineagePart[];
}

/** The output of a run's cell, or the changes in it. */
export interface CellOutputs {
  /** Versions of another replay mean something else: its answer begins anew. */
  replay: string;
  /** The next question names it. */
  version: number;
  /** Outputs as in a notebook file, with their places: text is only appended, a display may be replaced. */
  outputs: [number, Record<string, unknown>][];
  /** The cell's id in the notebook; empty if unknown. */
  cell: string;
  /** The cell's number in the notebook. */
  executed: number | null;
  /** Whether there is more already. */
  more: boolean;
  /** Whether the run has ended and this is all. */
  over: boolean;
}

/** A variable as a group of ranks has it. */
export interface HeldRow {
  name: string;
  /** Whether other ranks have something else. */
  differs: boolean;
  type: string;
  /** For a short value, the value itself. */
  shape: string;
  dtype: string;
  device: string;
  norm: string;
  digest: string;
  ranks: string;
}

/** The variables of ranks. */
export interface HeldVariables {
  /** A sentence that says whether all ranks have the same variables. */
  words: string;
  rows: HeldRow[];
  /** Further variables. */
  left_out: number;
  /** The ranks that have not answered in time. */
  silent: number[];
}

/** A table of a profile: all cells are text. */
export interface ProfileTable {
  caption: string;
  columns: string[];
  rows: string[][];
}

/** Some steps of a loop that runs, on its ranks, for a panel. */
export interface PanelProfile {
  /** The trace. */
  path: string;
  tables: ProfileTable[];
  /** What is missing, and how far the ranks' collectives are matched, as sentences. */
  remarks: string[];
  /** The place of the trace below a server's root, by which pages can download it; empty where it is not there. */
  file: string;
}

/** How far a profile is. */
export interface ProfileProgress {
  /** What is going on, as a sentence; empty at the beginning and at the end. */
  words: string;
  /** Null until it has been made. */
  profile: PanelProfile | null;
}

/** Something about a place that no notebook knows. */
export interface ExportSetting {
  name: string;
  help: string;
  default: string;
}

/** A place that a job can go to. */
export interface ExportTarget {
  name: string;
  help: string;
  /** How the name of its file ends. */
  suffix: string;
  settings: ExportSetting[];
}

/** All places. */
export interface ExportTargets {
  targets: ExportTarget[];
}

/** What an export has said. */
export interface WrittenJob {
  words: string;
  /** The file that was asked for, below the server's root. */
  file: string;
}

export type Message = WorldsMessage | AttentionMessage | RanksMessage | RunMessage | NewsMessage;

/** The one word for each way in which a run ends, or that it goes on, and its meaning. */
export const OUTCOMES: Record<RunOutcome, string> = {
  ok: "every rank ended its cell well",
  error: "the cell failed on some rank",
  interrupted: "a person or a timeout ended it",
  lost: "a rank died, or can no longer be heard",
  running: "it goes on",
};

/** The parts of a training step, in the order in which they are drawn, with their names. */
export const STEP_PARTS: Record<string, string> = {
  data: "loading data",
  copy: "copying to the device",
  forward: "forward pass",
  backward: "backward pass",
  compiled: "compiled step",
  optimizer: "optimizer",
  communication: "communication",
  device: "waiting for the device",
  checkpoint: "saving checkpoints",
  logging: "logging",
  other: "other code",
};

/** The page that explains notices. */
export const NOTICES = "https://github.com/jupyter-dtrain/jupyter-dtrain/blob/main/docs/notices.md";

/** Options of `%%distributed` and `%%rank` whose value is the next word. */
export const VALUED_OPTIONS: readonly string[] = ["--account", "--check", "--check-every", "--cpus-per-task", "--every", "--gpus-per-node", "--gpus-per-rank", "--gpus-per-task", "--gres", "--group", "--hostfile", "--hosts", "--inputs", "--interface", "--mem", "--mpiexec", "--name", "--nodes", "--ntasks-per-node", "--output", "--partition", "--profile", "--ps", "--pull", "--python", "--qos", "--ranks", "--replay", "--resume", "--ring", "--run", "--sbatch", "--ssh-args", "--tensorboard", "--time", "--timeout", "--torch-backend", "-N", "-i", "-n", "-o", "-r"];

/** The magics whose cells go to the ranks. */
export const RANK_MAGICS: readonly string[] = ["distributed", "dist", "rank"];

/** The magics of one line whose first word is a verb. */
export const VERB_MAGICS: readonly string[] = ["distributed", "dist"];
