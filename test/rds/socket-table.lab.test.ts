/** The table of calls over IPv6, with addresses of a network namespace of its own: unique local ones, and link-local ones with their link. */
import { it } from 'node:test';
import { inNamespace, namespaceObstacle, runInNamespace } from '../guest/namespace.ts';
import { run } from '../support/netns.ts';
import { tableSuite } from './table/suite.ts';

const obstacle = namespaceObstacle();
if (obstacle !== null) it('the table over IPv6', { skip: obstacle }, () => {});
else if (inNamespace) {
  run(
    'ip link set lo up',
    'ip link add zt0 type veth peer name zt1',
    'ip link set zt0 up',
    'ip link set zt1 up',
    ...['fd00::1/64', 'fd00::2/64', 'fe80::101/64', 'fe80::102/64'].map(
      (address) => `ip -6 addr add ${address} dev zt0 nodad`,
    ),
  );
  tableSuite('over TCP with IPv6', { addresses: ['fd00::1', 'fd00::2'], absent: 'fd00::dead' });
  tableSuite('of one link', {
    addresses: ['fe80::101%zt0', 'fe80::102%zt0'],
    absent: 'fe80::dead%zt0',
  });
} else process.exitCode = await runInNamespace(import.meta.url);
