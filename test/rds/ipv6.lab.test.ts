/** RDS over IPv6 with link-local addresses, between network namespaces. This file only makes the surroundings; the tests are in ipv6.ts. */
import { it } from 'node:test';
import { inNamespace, namespaceObstacle, runInNamespace } from '../guest/namespace.ts';

const obstacle = namespaceObstacle();
if (obstacle !== null) it('RDS over IPv6', { skip: obstacle }, () => {});
else if (inNamespace) await import('./ipv6.ts');
else process.exitCode = await runInNamespace(import.meta.url);
