/** Time for the sockets of this folder, which tests replace. */

/** Runs `task` after `ms`, unless what it returns is called before. */
export type After = (ms: number, task: () => void) => () => void;

export const realTime: After = (ms, task) => {
  const timer = setTimeout(task, ms);
  return () => clearTimeout(timer);
};
