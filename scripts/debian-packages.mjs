/**
 * Fetches programs and kernels from Debian into a folder outside the sources, without installing anything on this machine.
 *
 *   node scripts/debian-packages.mjs SET [SUITE]      prints {"folder": ..., "versions": {...}}
 *
 * What a set consists of is in `sets`. apt does the fetching and checks signatures, with lists and a cache of its own, so
 * that neither the machine's packages nor its lists change, and root is not needed. A folder that has its name is complete
 * and is not fetched again; remove it to get newer packages.
 *
 * If it cannot be had, the last line of standard error says why and the exit code is 1.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const cache = join(root, 'node_modules/.cache/zerotx-debian');
const keyring = '/usr/share/keyrings/debian-archive-keyring.gpg';

/**
 * suite: null stands for this machine's own, whose programs run with its C library. `packages` are chosen with apt's
 * answers to "what does this package depend on"; those of `alone` come without what they depend on, and `unwanted` are
 * left out, with all that only they need. Of each package `members` are unpacked, in tar's patterns.
 */
const sets = {
  /**
   * dpdk-testpmd, the vhost library and its headers, which include some of libbsd's. Of libdpdk-dev's dependencies, which
   * are all the drivers there are, those that are wanted are named.
   */
  dpdk: {
    suite: null,
    packages: (dependsOn) => [
      'dpdk-dev',
      ...dependsOn('libdpdk-dev').filter((each) =>
        /^librte-(?:vhost|net-vhost|net-virtio|mempool-ring)/.test(each),
      ),
    ],
    alone: ['libdpdk-dev', 'libbsd-dev'],
    unwanted: /^(?!lib|dpdk|ibverbs)|^(?:libc6|libgcc-s1|libcrypt1)$/,
    members: ['--exclude=*.a', '--exclude=./usr/share/doc'],
  },
  /**
   * A kernel for guests, with the modules of the network. Later suites have image and modules in packages of their own, on
   * which the one with the kernel's name depends.
   */
  kernel: {
    suite: null,
    packages: (dependsOn) => {
      const named = dependsOn('linux-image-amd64').filter((each) => /^linux-image-\d/.test(each));
      const parts = named.flatMap(dependsOn).filter((each) => /^linux-(?:binary|modules)-\d/.test(each));
      return [...named, ...parts];
    },
    alone: [],
    unwanted: /./,
    members: [
      ...['./boot/*', '*/modules/*/vmlinuz', '*/kernel/net/*', '*/kernel/drivers/virtio/*'],
      '*/kernel/drivers/net/vxlan/*',
      // A folder of the host, for guests that run its programs.
      ...['9p', 'netfs', 'fscache'].map((folder) => `*/kernel/fs/${folder}/*`),
      ...['virtio_net', 'net_failover', 'dummy', 'macvlan', 'veth'].map(
        (module) => `*/kernel/drivers/net/${module}.ko*`,
      ),
    ],
  },
  /** passt speaks vhost-user since the version of trixie; it brings the C library of its suite. */
  passt: { suite: 'trixie', packages: () => ['passt'], alone: [], unwanted: /^$/, members: [] },
  /**
   * User-Mode Linux, with the modules of the network, and the C library of its suite. Those of earlier suites abort on processors
   * whose floating-point state is larger than they knew.
   */
  uml: {
    suite: 'sid',
    packages: () => ['user-mode-linux', 'libc6', 'libgcc-s1'],
    alone: [],
    unwanted: /./,
    members: ['share', 'gconv', 'kernel/[!dn]*', 'kernel/drivers/[!n]*'].map((each) => `--exclude=*/${each}`),
  },
};

const others = ['recommends', 'suggests', 'conflicts', 'breaks', 'replaces', 'enhances'];
const recursion = ['depends', '--recurse', ...others.map((kind) => `--no-${kind}`)];

function fail(reason) {
  console.error(reason);
  process.exit(1);
}

const name = process.argv[2] ?? '';
const set = sets[name];
if (set === undefined) fail(`usage: debian-packages.mjs ${Object.keys(sets).join('|')} [SUITE]`);
try {
  console.log(JSON.stringify(fetchSet()));
} catch (error) {
  const words = `${error.stderr ?? ''}`.trim().split('\n').at(-1) || error.message;
  fail(`Debian packages for ${name}: ${words}`);
}

function fetchSet() {
  // With what is unpacked in its name: a set that wants more than it did is fetched again.
  const members = createHash('sha256').update(set.members.join('\n')).digest('hex').slice(0, 8);
  const folder = join(cache, `${name}-${suite()}-${members}`);
  const list = join(folder, 'versions.json');
  if (!existsSync(list)) unpackInto(folder);
  return { folder, versions: JSON.parse(readFileSync(list, 'utf8')) };
}

/** Into a folder of a passing name first, so that what has its name is complete. */
function unpackInto(folder) {
  mkdirSync(cache, { recursive: true });
  const partial = mkdtempSync(join(cache, 'unpack-'));
  try {
    const apt = privateApt(join(partial, 'apt'));
    apt.run('apt-get', ['update', '-q']);
    const packages = closure(apt, set.packages(apt.dependsOn));
    const downloads = join(partial, 'downloads');
    const files = join(partial, 'files');
    for (const each of [downloads, files]) mkdirSync(each);
    apt.run('apt-get', ['download', '-q', ...packages], downloads);
    const versions = {};
    for (const archive of readdirSync(downloads).sort()) {
      unpack(join(downloads, archive), files);
      const [packageName, version] = archive.split('_');
      versions[packageName] = decodeURIComponent(version);
    }
    writeFileSync(join(files, 'versions.json'), JSON.stringify(versions));
    putInPlace(files, folder);
  } finally {
    rmSync(partial, { recursive: true, force: true });
  }
}

/** Another process may have done the same meanwhile: its folder stays. */
function putInPlace(files, folder) {
  try {
    renameSync(files, folder);
  } catch (error) {
    if (!existsSync(join(folder, 'versions.json'))) throw error;
  }
}

/**
 * Packages of one set lie over each other, as on a machine. A package need not have every member: tar minds that, we do not.
 * busybox loads no module that is compressed.
 */
function unpack(archive, folder) {
  const tar = 'dpkg-deb --fsys-tarfile "$0" | LC_ALL=C tar -x --wildcards "$@"';
  const { stderr } = spawnSync('sh', ['-c', tar, archive, ...set.members], {
    cwd: folder,
    encoding: 'utf8',
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  const wrong = stderr
    .split('\n')
    .find((line) => line !== '' && !/Not found in archive|Exiting with/.test(line));
  if (wrong !== undefined) throw new Error(wrong);
  const options = { cwd: folder, stdio: ['ignore', 'ignore', 'pipe'] };
  execFileSync('find', ['.', '-name', '*.ko.xz', '-exec', 'xz', '-d', '{}', '+'], options);
}

/** All that `packages` depend on, without what is unwanted. */
function closure(apt, packages) {
  const found = new Set(packages);
  for (const each of found) {
    for (const needed of apt.dependsOn(each)) {
      if (!set.unwanted.test(needed) && !set.alone.includes(needed)) found.add(needed);
    }
  }
  return [...found, ...set.alone];
}

/** apt with lists, status and cache below `folder`: it knows one suite of this machine's mirror, and nothing installed. */
function privateApt(folder) {
  for (const part of ['lists/partial', 'archives/partial']) {
    mkdirSync(join(folder, part), { recursive: true });
  }
  writeFileSync(join(folder, 'status'), '');
  writeFileSync(join(folder, 'sources.list'), `deb [signed-by=${keyring}] ${mirror()} ${suite()} main\n`);
  const options = {
    'Dir::State': folder,
    'Dir::State::lists': join(folder, 'lists'),
    'Dir::State::status': join(folder, 'status'),
    'Dir::Cache': folder,
    'Dir::Etc::sourcelist': join(folder, 'sources.list'),
    'Dir::Etc::sourceparts': '-',
    'Dir::Etc::preferencesparts': '-',
    // apt's own user cannot reach the folder.
    'APT::Sandbox::User': '',
    // A machine without a network says so soon.
    'Acquire::Retries': '1',
    'Acquire::http::Timeout': '20',
    'Acquire::https::Timeout': '20',
  };
  const flags = Object.entries(options).flatMap(([key, value]) => ['-o', `${key}=${value}`]);
  const run = (program, args, cwd = folder) =>
    execFileSync(program, [...flags, ...args], {
      cwd,
      encoding: 'utf8',
      maxBuffer: 64 << 20,
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, LC_ALL: 'C' },
    });
  let known = new Map();
  const dependsOn = (packageName) => {
    const answer = known.get(packageName);
    if (answer !== undefined) return answer;
    known = new Map([...known, ...dependencies(run('apt-cache', [...recursion, packageName]))]);
    return known.get(packageName) ?? [];
  };
  return { run, dependsOn };
}

/**
 * What each package in apt's answer depends on. A package begins at the margin; of alternatives, which all but the last
 * are marked with `|`, the first real one counts; virtual packages stand in angle brackets.
 */
function dependencies(text) {
  const all = new Map();
  let names = [];
  let answered = false;
  for (const line of text.split('\n')) {
    if (/^[^ <]/.test(line)) {
      names = [];
      all.set(line, names);
      continue;
    }
    const [, more, needed] = /^ ([ |])(?:Pre)?Depends: (\S+)$/.exec(line) ?? [];
    if (needed === undefined) continue;
    if (!answered && !needed.startsWith('<')) {
      names.push(needed);
      answered = true;
    }
    if (more === ' ') answered = false;
  }
  return all;
}

function suite() {
  return set.suite ?? process.argv[3] ?? hostSuite();
}

/** The suite this machine was installed from. */
function hostSuite() {
  const words = readFileSync('/etc/os-release', 'utf8');
  if (!/^ID="?debian"?$/m.test(words)) throw new Error('this machine does not run Debian');
  const codename = /^VERSION_CODENAME="?(\w+)"?$/m.exec(words)?.[1];
  if (codename === undefined) throw new Error('/etc/os-release names no suite');
  return codename;
}

/** Where this machine gets Debian from: what apt would fetch, which it knows even if it has never fetched anything. */
function mirror() {
  if (!existsSync(keyring)) throw new Error(`no ${keyring}`);
  const uris = execFileSync('apt-get', ['update', '--print-uris'], { encoding: 'utf8' });
  const end = `dists/${hostSuite()}/InRelease'`;
  const line = uris.split('\n').find((each) => each.includes(end));
  if (line === undefined) throw new Error(`apt has no source of ${hostSuite()}`);
  return line.slice(1, line.indexOf(end));
}
