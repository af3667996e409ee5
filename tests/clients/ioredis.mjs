// ioredis as it comes (version 6 chooses RESP3, 5 speaks RESP2), and with each protocol by name.

import { assert, asObject, blob, idOf, KEY, load, port, RECORDS, runCases } from './common.mjs';

const { Redis } = load('ioredis');
const newest = Number(load('ioredis/package.json').version.split('.')[0]) >= 6;

const connect = (options = {}) => new Redis({ port, host: '127.0.0.1', ...options });

const fill = async (client) => {
  await client.call('MEM.CREATE', KEY, 'DIM', 3);
  for (const [id, text, vector, type] of RECORDS) {
    assert.equal(await client.call('MEM.ADD', KEY, 'ID', id, 'TEXT', text, 'VEC', blob(vector), 'META', 'type', type), id);
  }
};

const cases = (client, resp) => ({
  'is ready after its own handshake': async () => {
    assert.equal(await client.ping(), 'PONG');
    assert.equal(client.status, 'ready');
    assert.match(await client.client('LIST'), /lib-name=ioredis/);
    assert.match(await client.info(), /redis_version:7\.4\.0/);
  },

  'records come back': async () => {
    await fill(client);
    const record = asObject(await client.call('MEM.GET', KEY, 'm1', 'WITHMETA'));
    assert.equal(record.text, RECORDS[0][1]);
    assert.equal(Number(record.importance), 0.5);
    assert.equal(Number(record.pttl), -1);
    assert.deepEqual(asObject(record.meta), { type: 'preference' });
    assert.equal(await client.call('MEM.GET', KEY, 'absent'), null);
    assert.equal(await client.call('MEM.CARD', KEY), 3);
  },

  'bytes are kept': async () => {
    await fill(client);
    const text = Buffer.from([0, 255, 13, 10, 128]);
    await client.call('MEM.ADD', KEY, 'ID', 'raw', 'TEXT', text);
    const record = await client.callBuffer('MEM.GET', KEY, 'raw');
    const found = Array.isArray(record) ? record[3] : asObject(record).text;
    assert.deepEqual(found, text);
  },

  'three ways to ask': async () => {
    await fill(client);
    const near = ['VEC', blob([0.1, 0.2, 0.9])];
    const ids = (hits) => hits.map((hit) => idOf(hit, resp));
    assert.deepEqual(ids(await client.call('MEM.SEARCH', KEY, 'lisbon holiday')), ['m1']);
    assert.deepEqual(ids(await client.call('MEM.VSEARCH', KEY, ...near)), ['m3', 'm2', 'm1']);
    assert.deepEqual(ids(await client.call('MEM.QUERY', KEY, 'TEXT', 'beach', ...near, 'TOPK', 1)), ['m3']);
    const scored = await client.call('MEM.VSEARCH', KEY, 'FVEC', 3, 0.9, 0.4, 0.1, 'TOPK', 1, 'NOTEXT', 'WITHSCORES');
    const score = resp === 2 ? asObject(scored[0][1]).score : asObject(scored[0]).score;
    assert.ok(Math.abs(Number(score) - 1) < 1e-6);
  },

  'errors reject': async () => {
    await assert.rejects(client.call('MEM.CARD', 'absent'), /ERR no such memory index/);
    await assert.rejects(client.get('a'), /unknown command 'get', with args beginning with: 'a'/);
  },

  'pipeline and transaction': async () => {
    await fill(client);
    const many = await client.pipeline().call('MEM.CARD', KEY).call('MEM.CARD', 'absent').call('MEM.DEL', KEY, 'm1').exec();
    assert.equal(many[0][1], 3);
    assert.match(many[1][0].message, /no such memory index/);
    assert.equal(many[2][1], 1);
    const whole = await client.multi().call('MEM.ADD', KEY, 'ID', 'x', 'TEXT', 'one').call('MEM.CARD', KEY).exec();
    assert.deepEqual(whole, [[null, 'x'], [null, 3]]);
  },

  'keys': async () => {
    await fill(client);
    assert.equal(await client.type(KEY), 'memory');
    assert.equal(await client.exists(KEY), 1);
    assert.equal(await client.ttl(KEY), -1);
    const found = [];
    for await (const keys of client.scanStream({ match: 'user:*' })) found.push(...keys);
    assert.deepEqual(found, [KEY]);
    assert.equal(await client.del(KEY), 1);
  },

  'writes are announced': async () => {
    const subscriber = client.duplicate();
    const heard = new Promise((resolve) => {
      subscriber.on('message', (channel, message) => resolve([channel, message]));
    });
    assert.equal(await subscriber.subscribe(`__mem__:${KEY}`), 1);
    await fill(client);
    assert.deepEqual(await heard, [`__mem__:${KEY}`, 'add m1']);
    await subscriber.unsubscribe();
    assert.equal(await subscriber.ping(), 'PONG');
    await subscriber.quit();
  },

  'commands at once, answers in order': async () => {
    const words = Array.from({ length: 500 }, (_, i) => `word ${i}`);
    assert.deepEqual(await Promise.all(words.map((word) => client.echo(word))), words);
  },
});

const choices = newest ? [[{}, 3], [{ protocol: 2 }, 2], [{ protocol: 3 }, 3]] : [[{}, 2]];
for (const [options, resp] of choices) {
  console.log(`# ${JSON.stringify(options)}`);
  const client = connect(options);
  await runCases(cases(client, resp), () => client.flushall());
  assert.equal(await client.quit(), 'OK');
}
