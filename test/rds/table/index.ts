/** All groups of the table, in the order of a socket's life. */
import { binding, connection } from './rows-bind.ts';
import { closing, completions, monitoring, withdrawing } from './rows-cookies.ts';
import { options } from './rows-options.ts';
import { readiness } from './rows-ready.ts';
import { receiving, waiting } from './rows-receive.ts';
import { acceptance, checks } from './rows-sendmsg.ts';
import type { Group } from './shape.ts';

export const groups: readonly Group[] = [
  binding,
  connection,
  options,
  checks,
  acceptance,
  readiness,
  receiving,
  waiting,
  completions,
  withdrawing,
  monitoring,
  closing,
];
