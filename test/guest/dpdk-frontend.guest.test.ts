/**
 * DPDK's front-end (virtio-user) at our devices: what it says it sent and got is what was counted here, to the packet. This file only
 * makes the surroundings; the tests are in dpdk-frontend.ts.
 */
import { dpdk } from '../../bench/baselines/dpdk.ts';
import { guestTests } from './guest-tests.ts';

await guestTests("DPDK's front-end", import.meta.url, () => import('./dpdk-frontend.ts'), dpdk);
