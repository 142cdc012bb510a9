/** Sends its descriptor 4 over the socket that is its descriptor 3: for a parent who wants a copy of one that is not its own to close. */
import { adopt } from '../../../src/sys/fds.ts';
import { sendWithFds } from '../../support/descriptors.ts';

const odd = adopt(4);
sendWithFds(adopt(3), Uint8Array.of(1), [odd]);
