/**
 * How long after its peer is back a node that dials has its first message there: one line of JSON with the milliseconds of each
 * seed, and the ceiling of the back-off. Virtual time, so the figure is that of the algorithm.
 *
 *   node out/test/rds/children/reconnect-time.js [seeds]
 */
import { reconnectTimes } from '../../support/reconnect.ts';

process.stdout.write(`${JSON.stringify(reconnectTimes(Number(process.argv[2] ?? 200)))}\n`);
