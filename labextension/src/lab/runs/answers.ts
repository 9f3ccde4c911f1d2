/** What the server answers, as React state. While a new answer is on its way, and after one that failed, the old one stays. */

import { useEffect, useState } from "react";

/**
 * Ask when any of `on` changes, and then every `period` milliseconds while the page is visible; 0: not again.
 *
 * `ask` returns null where there is nothing to ask. The second value says why the newest request failed; mostly empty.
 */
export function useAnswer<T>(
  ask: () => Promise<T> | null,
  on: unknown[],
  period = 0,
): [found: T | null, problem: string, again: () => void] {
  const [found, setFound] = useState<T | null>(null);
  const [problem, setProblem] = useState("");
  const [asked, setAsked] = useState(0);
  useEffect(() => {
    let over = false;
    let waits = false;
    const load = (): void => {
      if (waits) return;
      waits = true;
      ask()
        ?.then(
          (answer) => {
            if (over) return;
            setFound(answer);
            setProblem("");
          },
          (error: unknown) => {
            if (!over) setProblem((error as Error).message);
          },
        )
        .finally(() => {
          waits = false;
        });
    };
    load();
    const timer =
      period > 0
        ? setInterval(() => {
            if (!document.hidden) load();
          }, period)
        : 0;
    return () => {
      over = true;
      clearInterval(timer);
    };
  }, [...on, period, asked]);
  const again = (): void => {
    setAsked((count) => count + 1);
  };
  return [found, problem, again];
}
