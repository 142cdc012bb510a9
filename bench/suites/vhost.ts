/**
 * The vhost-user device: against DPDK's, against QEMU's own ways out, lending against copying, and what it costs when it has
 * nothing to do.
 */
import { groupedSuite, type Suite } from '../suite.ts';
import { dpdkGroups } from './vhost-dpdk.ts';
import { guestGroup } from './vhost-guest.ts';
import { switchGroup } from './vhost-switch.ts';
import { tableGroup } from './vhost-table.ts';
import { upkeepGroups } from './vhost-upkeep.ts';
import { zerocopyGroups } from './vhost-zerocopy.ts';

export const suite: Suite = groupedSuite(
  'a vhost-user device and its uplinks: DPDK, QEMU and passt as yardsticks, zero-copy against copying out of cold memory, and upkeep',
  [guestGroup, ...dpdkGroups, switchGroup, ...zerocopyGroups, tableGroup, ...upkeepGroups],
);
