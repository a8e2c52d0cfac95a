// Lets Node use the proxy that https_proxy names. NODE_OPTIONS loads this into every Node of the
// guest, so it is written for Node 12. From 22.21 on, Node does that by itself
// (NODE_USE_ENV_PROXY), but not for an Agent or Dispatcher of a program's own. Each connection to
// another machine by TLS or for HTTP becomes a tunnel through the proxy (CONNECT).
'use strict';

const http = require('http');
const net = require('net');
const tls = require('tls');

const { env } = process;
const proxy = parsed(env.https_proxy || env.HTTPS_PROXY);
const unproxied = (env.no_proxy || env.NO_PROXY || '').toLowerCase().split(/[\s,]+/);
if (proxy) {
  useInTls();
  useInHttp();
  if (process.versions.node.startsWith('22.')) hideWarning();
}

// Node 22 would warn at each start that what NODE_USE_ENV_PROXY uses is experimental.
function hideWarning() {
  const { emit } = process;
  process.emit = function filtered(event, warning) {
    if (event !== 'warning' || !warning || warning.code !== 'UNDICI-EHPA') {
      return emit.apply(this, arguments);
    }
    process.emit = emit;
    return true;
  };
}

function parsed(text) {
  try {
    const url = new URL(text);
    return url.protocol === 'http:' ? { host: bare(url.hostname), port: Number(url.port) || 80 } : null;
  } catch {
    return null;
  }
}

function bare(host) {
  return String(host).replace(/^\[(.*)\]$/, '$1').toLowerCase();
}

// Whether options of connect() lead to another machine, and not through a socket that is there.
function isRemote(options) {
  if (!options || !options.host) return false;
  if (options.socket || options.socketPath || options.path) return false;
  const host = bare(options.host);
  if (Number(options.port) === proxy.port && addressOf(options) === proxy.host) return false;
  if (/^(127\..*|0\.0\.0\.0|::1?)$/.test(host)) return false;
  return !unproxied.some((name) => name === '*' || name === host
    || (name.startsWith('.') && host.endsWith(name)));
}

// undici 8 connects to the proxy by the name of the server, with a lookup that gives the proxy.
function addressOf({ host, lookup }) {
  let found = bare(host);
  if (typeof lookup === 'function') lookup(host, {}, (_, address) => { found = address; });
  return found;
}

// Connects a new socket to the proxy, and through it to the host. Until the proxy has answered, it
// holds back what is written; the answer itself is not read by others.
function openTunnel(socket, options, usualPort) {
  const host = bare(options.host);
  const target = `${net.isIPv6(host) ? `[${host}]` : host}:${options.port || usualPort}`;
  let head = Buffer.alloc(0);
  socket.push = (part) => {
    head = Buffer.concat([head, part || Buffer.alloc(0)]);
    const end = head.indexOf('\r\n\r\n');
    if (part && end < 0 && head.length < 65536) return true;
    delete socket.push;
    const [, status, reason] = /^HTTP\/1\.\d (\d+) ?(.*)/.exec(head.toString('latin1')) || [];
    if (end < 0 || status !== '200') {
      const why = status ? `answers ${status} ${reason}` : 'does not answer';
      socket.destroy(new Error(`the proxy ${why}`));
      return false;
    }
    socket.uncork();
    return end + 4 < head.length ? socket.push(head.slice(end + 4)) : true;
  };
  socket.connect(proxy.port, proxy.host);
  socket.write(`CONNECT ${target} HTTP/1.1\r\nHost: ${target}\r\n\r\n`);
  socket.cork();
}

// HTTPS: Agents, undici and the package ws connect by this.
function useInTls() {
  const { connect } = tls;
  tls.connect = function connectTls(...given) {
    const [options, ...more] = typeof given[0] === 'object' ? given : withOptions(given);
    if (!isRemote(options)) return connect.apply(this, given);
    const socket = new net.Socket(); // not connected yet, so TLS uses it as any stream
    const secure = connect.call(this, { ...options, socket }, ...more);
    if (options.timeout) secure.setTimeout(options.timeout);
    for (const name of ['ref', 'unref']) {
      secure[name] = () => {
        socket[name]();
        return secure;
      };
    }
    openTunnel(socket, options, 443);
    return secure;
  };
}

// Of PORT, HOST, OPTIONS, CALLBACK, each but the first may be left out. Without a host, as with a
// path instead of a port, the connection stays in the guest.
function withOptions(given) {
  const of = (type) => given.slice(1).find((one) => typeof one === type && one);
  return [{ port: given[0], host: of('string'), ...of('object') }, of('function')];
}

// HTTP without TLS. All its Agents connect by the function of their prototype; Node's own proxying
// one has proxyEnv.
function useInHttp() {
  const { connect } = net;
  const original = http.Agent.prototype.createConnection;
  http.Agent.prototype.createConnection = function createConnection(options, callback) {
    const isProxying = this && this.options && this.options.proxyEnv;
    if (isProxying || !isRemote(options)) return original.apply(this, arguments);
    return connectForHttp(options, callback);
  };
  net.connect = net.createConnection = function connectTcp(options, callback) {
    if (!isRemote(options) || !isForHttp(options)) return connect.apply(this, arguments);
    return connectForHttp(options, callback);
  };
}

// Other protocols use net.connect too, within the guest. Only undici and ws give these options.
function isForHttp(options) {
  return 'highWaterMark' in options || 'headers' in options;
}

function connectForHttp(options, callback) {
  const socket = new net.Socket(options);
  if (options.timeout) socket.setTimeout(options.timeout);
  if (callback) socket.once('connect', callback);
  openTunnel(socket, options, 80);
  return socket;
}
