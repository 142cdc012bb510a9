/** Sends its descriptors from 4 on over the socket that is its descriptor 3: for a parent who wants copies of some that are not its own to close. */
import { adopt, sendWithFds } from '../../../src/sys/fds.ts';

const count = Number(process.argv[2]);
const fds = Array.from({ length: count }, (_, i) => adopt(4 + i));
sendWithFds(adopt(3), Uint8Array.of(1), fds);
