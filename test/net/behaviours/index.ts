/** The whole table, area by area. */
import { ABORT } from './abort.ts';
import { CONNECT } from './connect.ts';
import { CONNECT_ERRORS } from './connect-errors.ts';
import { DESTROY } from './destroy.ts';
import { FAMILY } from './family.ts';
import { HALF_OPEN } from './half-open.ts';
import { IPV6 } from './ipv6.ts';
import { LISTEN } from './listen.ts';
import { ORDER } from './order.ts';
import { PROCESS } from './process.ts';
import { READ } from './read.ts';
import { SERVER } from './server.ts';
import { STATE } from './state.ts';
import type { Table } from './table.ts';
import { TIMEOUT } from './timeout.ts';
import { UNIX } from './unix.ts';
import { WRITE } from './write.ts';

export const BEHAVIOURS: Readonly<Record<string, Table>> = {
  connect: CONNECT,
  'connect errors': CONNECT_ERRORS,
  'several addresses': FAMILY,
  'order of events': ORDER,
  'half-open': HALF_OPEN,
  destroy: DESTROY,
  write: WRITE,
  read: READ,
  'timeout and options': TIMEOUT,
  state: STATE,
  unix: UNIX,
  ipv6: IPV6,
  listen: LISTEN,
  server: SERVER,
  signals: ABORT,
  processes: PROCESS,
};
