// node-redis as it comes (version 6 chooses RESP3, 4 and 5 speak RESP2), and with each protocol by name.

import { assert, asObject, blob, idOf, KEY, load, port, RECORDS, runCases } from './common.mjs';

const { createClient, RESP_TYPES } = load('redis');
const major = Number(load('redis/package.json').version.split('.')[0]);

const fill = async (client) => {
  await client.sendCommand(['MEM.CREATE', KEY, 'DIM', '3']);
  for (const [id, text, vector, type] of RECORDS) {
    const words = ['MEM.ADD', KEY, 'ID', id, 'TEXT', text, 'VEC', blob(vector), 'META', 'type', type];
    assert.equal(await client.sendCommand(words), id);
  }
};

const cases = (client, resp) => ({
  'is ready after its own handshake': async () => {
    assert.equal(await client.ping(), 'PONG');
    assert.ok(client.isReady);
    assert.match(await client.sendCommand(['CLIENT', 'LIST']), /lib-name=node-redis/);
    assert.match(await client.info(), /redis_version:7\.4\.0/);
  },

  'records come back': async () => {
    await fill(client);
    const record = asObject(await client.sendCommand(['MEM.GET', KEY, 'm1', 'WITHMETA']));
    assert.equal(record.text, RECORDS[0][1]);
    assert.equal(Number(record.importance), 0.5);
    assert.equal(Number(record.pttl), -1);
    assert.deepEqual(asObject(record.meta), { type: 'preference' });
    assert.equal(await client.sendCommand(['MEM.GET', KEY, 'absent']), null);
    assert.equal(await client.sendCommand(['MEM.CARD', KEY]), 3);
  },

  'three ways to ask': async () => {
    await fill(client);
    const near = ['VEC', blob([0.1, 0.2, 0.9])];
    const ask = async (...words) => (await client.sendCommand(words)).map((hit) => idOf(hit, resp));
    assert.deepEqual(await ask('MEM.SEARCH', KEY, 'lisbon holiday'), ['m1']);
    assert.deepEqual(await ask('MEM.VSEARCH', KEY, ...near), ['m3', 'm2', 'm1']);
    assert.deepEqual(await ask('MEM.QUERY', KEY, 'TEXT', 'beach', ...near, 'TOPK', '1'), ['m3']);
    const words = ['MEM.VSEARCH', KEY, 'FVEC', '3', '0.9', '0.4', '0.1', 'TOPK', '1', 'NOTEXT', 'WITHSCORES'];
    const [hit] = await client.sendCommand(words);
    const score = resp === 2 ? asObject(hit[1]).score : asObject(hit).score;
    assert.ok(Math.abs(Number(score) - 1) < 1e-6);
  },

  'errors reject': async () => {
    await assert.rejects(client.sendCommand(['MEM.CARD', 'absent']), /ERR no such memory index/);
    await assert.rejects(client.get('a'), /unknown command 'GET', with args beginning with: 'a'/);
  },

  'pipeline and transaction': async () => {
    await fill(client);
    // Commands of one tick go out together.
    const many = await Promise.all([client.sendCommand(['MEM.CARD', KEY]), client.sendCommand(['MEM.DEL', KEY, 'm1'])]);
    assert.deepEqual(many, [3, 1]);
    const whole = await client
      .multi()
      .addCommand(['MEM.ADD', KEY, 'ID', 'x', 'TEXT', 'one'])
      .addCommand(['MEM.CARD', KEY])
      .exec();
    assert.deepEqual(whole, ['x', 3]);
  },

  'keys': async () => {
    await fill(client);
    assert.equal(await client.type(KEY), 'memory');
    assert.equal(await client.exists(KEY), 1);
    assert.equal(await client.ttl(KEY), -1);
    const found = [];
    for await (const keys of client.scanIterator({ MATCH: 'user:*' })) found.push(...[keys].flat());
    assert.deepEqual(found, [KEY]);
    assert.equal(await client.del(KEY), 1);
  },

  'writes are announced': async () => {
    const subscriber = client.duplicate();
    subscriber.on('error', (error) => console.error(error));
    await subscriber.connect();
    let tell;
    const heard = new Promise((resolve) => { tell = resolve; });
    await subscriber.subscribe(`__mem__:${KEY}`, (message, channel) => tell([channel, message]));
    await fill(client);
    assert.deepEqual(await heard, [`__mem__:${KEY}`, 'add m1']);
    await subscriber.unsubscribe(`__mem__:${KEY}`);
    assert.equal(String(await subscriber.ping()), 'PONG'); // version 6 gives a Buffer on RESP2
    await (major >= 5 ? subscriber.close() : subscriber.quit());
  },

  'bytes are kept': async () => {
    if (major < 5) return; // version 4 spells this otherwise
    await fill(client);
    const text = Buffer.from([0, 255, 13, 10, 128]);
    await client.sendCommand(['MEM.ADD', KEY, 'ID', 'raw', 'TEXT', text]);
    const typeMapping = { [RESP_TYPES.BLOB_STRING]: Buffer };
    const record = await client.sendCommand(['MEM.GET', KEY, 'raw'], { typeMapping });
    const found = Array.isArray(record) ? record[3] : asObject(record).text;
    assert.deepEqual(found, text);
  },
});

const choices = major >= 5 ? [[{}, major >= 6 ? 3 : 2], [{ RESP: 2 }, 2], [{ RESP: 3 }, 3]] : [[{}, 2]];
for (const [options, resp] of choices) {
  console.log(`# ${JSON.stringify(options)}`);
  const client = createClient({ url: `redis://127.0.0.1:${port}`, ...options });
  client.on('error', (error) => console.error(error));
  await client.connect();
  await runCases(cases(client, resp), () => client.sendCommand(['FLUSHALL']));
  await (major >= 5 ? client.close() : client.quit());
}
