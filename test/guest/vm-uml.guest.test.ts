/**
 * Guests of User-Mode Linux on our devices: a second driver and front-end, at near native speed, which reads the device's
 * configuration, accepts completion in order, and comes and goes in ways of its own. This file only makes the surroundings; the
 * tests are in vm-uml.ts.
 */
import { guestTests } from './guest-tests.ts';
import { umlImage } from './uml.ts';

await guestTests('User-Mode Linux', import.meta.url, () => import('./vm-uml.ts'), umlImage);
