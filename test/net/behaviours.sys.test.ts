/**
 * The table of behaviours: over node:net, which shows that its rows are true; over zerotx/net; and over zerotx/net that
 * lends every write, where loopback's automatic copying would hide what lending changes.
 */
import * as node from 'node:net';
import * as zerotx from '../../src/net/index.ts';
import { lending } from './behaviours/lending.ts';
import { runTable } from './behaviours/run.ts';
import type { NetModule } from './behaviours/table.ts';

const specifier = new URL('../../src/net/index.js', import.meta.url).href;
const net = zerotx as unknown as NetModule;

runTable({ name: 'node:net', net: node, specifier: 'node:net', differs: false });
runTable({ name: 'zerotx/net', net, specifier, differs: true });
runTable({ name: 'zerotx/net that lends', net: lending(net), specifier, differs: true });
