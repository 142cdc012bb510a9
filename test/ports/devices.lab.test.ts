/** Ports on devices of a kernel. This file only makes the surroundings; the tests are in devices.ts. */
import { it } from 'node:test';
import { inNamespace, namespaceObstacle, runInNamespace } from '../guest/namespace.ts';

const obstacle = namespaceObstacle();
if (obstacle !== null) it('ports on devices', { skip: obstacle }, () => {});
else if (inNamespace) await import('./devices.ts');
else process.exitCode = await runInNamespace(import.meta.url);
