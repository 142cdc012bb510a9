/**
 * A macvtap as a port: a tap on top of another network device, with a MAC address of its own there (macvlan).
 *
 *   ip link add link eth0 name macvtap0 type macvtap mode bridge && ip link set macvtap0 up
 *   const port = new MacvtapPort({ name: 'lan', device: 'macvtap0' });
 *
 * As a tap in everything (tap.ts), but for the file that it is opened by: /dev/tapN, N being the number of the interface. The
 * device file system of a container may not have it; mknod(1) makes one, with the numbers in
 * /sys/class/net/NAME/tapN/dev. Frames for other addresses than the interface's come only with its parent in promiscuous
 * mode (mode passthru).
 */
import { native } from '../sys/binding.ts';
import { openMacvtap, type Tap } from '../sys/tap.ts';
import { TapPort, type TapPortOptions } from './tap.ts';

export class MacvtapPort extends TapPort {
  constructor(options: TapPortOptions) {
    super(options, openMacvtapQueue, native());
  }
}

function openMacvtapQueue(device: string, { offloads = 0 }: TapPortOptions): Tap {
  return openMacvtap(device, { offloads });
}
