// Lets Node use the proxy that https_proxy names. NODE_OPTIONS loads this into every Node of the
// guest. Node 22.21 and later do that by themselves (NODE_USE_ENV_PROXY), but for the programs that
// make an Agent of http or https of their own; before, fetch and every Agent need it. A connection
// to another machine becomes a tunnel through the proxy (CONNECT).
'use strict';

const http = require('http');
const https = require('https');
const net = require('net');
const tls = require('tls');

const { env } = process;
const isNative = process.allowedNodeEnvironmentFlags.has('--use-env-proxy');
const proxy = parsed(env.https_proxy || env.HTTPS_PROXY);
const unproxied = (env.no_proxy || env.NO_PROXY || '').toLowerCase().split(/[\s,]+/);
if (proxy) {
  useInAgents(http.Agent.prototype, 80, (options, socket) => socket);
  useInAgents(https.Agent.prototype, 443, (options, socket, connect) => connect({ ...options, socket }));
  if (!isNative) useInFetch();
  else if (process.versions.node.startsWith('22.')) hideWarning();
}

// Node 22 would warn at each start that what NODE_USE_ENV_PROXY uses is experimental.
function hideWarning() {
  const { emit } = process;
  process.emit = function filtered(event, warning) {
    if (event !== 'warning' || warning?.code !== 'UNDICI-EHPA') return emit.apply(this, arguments);
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

function isDirect(host, port) {
  if (host === proxy.host && Number(port) === proxy.port) return true;
  return unproxied.some((name) => name === '*' || name === host
    || (name.startsWith('.') && host.endsWith(name)));
}

// Calls back with an error, or with a socket that the proxy connects to the host.
function tunnel(host, port, callback) {
  const target = `${net.isIPv6(host) ? `[${host}]` : host}:${port}`;
  const request = http.request({
    method: 'CONNECT', path: target, headers: { host: target },
    createConnection: () => net.connect(proxy.port, proxy.host),
  });
  request.once('error', callback);
  request.once('connect', (answer, socket, early) => {
    request.off('error', callback);
    if (answer.statusCode === 200) {
      if (early.length) socket.unshift(early);
      callback(null, socket);
    } else {
      socket.destroy();
      callback(new Error(`the proxy answers ${answer.statusCode} ${answer.statusMessage}`));
    }
  });
  request.end();
}

// Every Agent connects by this function of its prototype; Node's own proxying one has proxyEnv.
function useInAgents(prototype, usualPort, finish) {
  const original = prototype.createConnection;
  prototype.createConnection = function createConnection(options, callback) {
    const host = options?.host && bare(options.host);
    const port = options?.port || usualPort;
    const isConnected = options?.socketPath || options?.socket || this.options?.proxyEnv;
    if (!host || !callback || isConnected || isDirect(host, port)) {
      return original.apply(this, arguments);
    }
    tunnel(host, port, (error, socket) => {
      if (error) callback(error);
      else callback(null, finish(options, socket, (more) => original.call(this, more)));
    });
  };
}

// undici of npm uses the same dispatcher, unless a program sets another.
function useInFetch() {
  void globalThis.Response; // loads Node's own undici, which makes the dispatcher
  const key = Symbol.for('undici.globalDispatcher.1');
  const Agent = globalThis[key]?.constructor;
  if (Agent) globalThis[key] = new Agent({ connect: connectForFetch });
}

function connectForFetch(options, callback) {
  const host = bare(options.hostname);
  const isTls = options.protocol === 'https:';
  const port = Number(options.port) || (isTls ? 443 : 80);
  const once = (socket, event, done) => {
    socket.once('error', callback);
    socket.once(event, () => {
      socket.off('error', callback);
      done(null, socket);
    });
  };
  const secure = (error, socket) => {
    if (error || !isTls) {
      callback(error, socket);
      return;
    }
    const servername = options.servername || (net.isIP(host) ? '' : host);
    once(tls.connect({ socket, servername, ALPNProtocols: ['http/1.1'] }), 'secureConnect', callback);
  };
  if (isDirect(host, port)) once(net.connect(port, host), 'connect', secure);
  else tunnel(host, port, secure);
}
