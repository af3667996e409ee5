// What the scripts share: the packages, the server's port, cases that say their names.
//
// Usage: node SCRIPT.mjs PORT. Exit code 0: all cases passed. The packages come from $RECALLD_NODE_MODULES, a
// node_modules folder, else from where node looks: beside the scripts, then in the folders above.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const folder = process.env.RECALLD_NODE_MODULES;
const require = createRequire(folder ? join(folder, 'from-here.js') : import.meta.url);

export const load = (name) => require(name);
export const port = Number(process.argv[2]);
export { assert };

export const KEY = 'user:123';

export const RECORDS = [
  ['m1', 'User prefers Lisbon for winter holidays.', [0.9, 0.4, 0.1], 'preference'],
  ['m2', 'User is currently planning a mountain hiking trip.', [0.7, 0.2, 0.3], 'project'],
  ['m3', 'User likes quiet beach resorts.', [0.1, 0.2, 0.9], 'preference'],
];

export const blob = (vector) => {
  const bytes = Buffer.alloc(vector.length * 4);
  vector.forEach((number, i) => bytes.writeFloatLE(number, i * 4));
  return bytes;
};

/** A map reply as an object: RESP3 clients may give an object, a Map or pairs; RESP2 has pairs. */
export const asObject = (reply) => {
  if (reply instanceof Map) return Object.fromEntries(reply);
  if (!Array.isArray(reply)) return { ...reply };
  const pairs = [];
  for (let i = 0; i < reply.length; i += 2) pairs.push([reply[i], reply[i + 1]]);
  return Object.fromEntries(pairs);
};

/** The id of a hit: RESP2 has arrays that start with it, RESP3 maps. */
export const idOf = (hit, resp) => String(resp === 2 ? hit[0] : asObject(hit).id);

/** Run the cases in order against an empty server each; the name of each goes to stdout before it runs. */
export const runCases = async (cases, flush) => {
  for (const [name, run] of Object.entries(cases)) {
    console.log(name);
    await run();
    await flush();
  }
};
