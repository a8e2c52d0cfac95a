// Lets Node before 22.21 use the proxy that the environment names, as newer ones do by themselves
// (NODE_USE_ENV_PROXY). NODE_OPTIONS loads it into every Node of the guest. Each connection to
// another machine becomes a tunnel through the proxy (CONNECT).
'use strict';

if (!process.allowedNodeEnvironmentFlags.has('--use-env-proxy')) install();

function install() {
  const named = process.env.https_proxy || process.env.HTTPS_PROXY;
  if (!named || !URL.canParse?.(named)) return;
  const proxy = new URL(named);
  const direct = (process.env.no_proxy || process.env.NO_PROXY || '').toLowerCase().split(/[\s,]+/);
  const http = require('http');
  const https = require('https');
  const net = require('net');
  const tls = require('tls');
  const bare = (host) => host.replace(/^\[(.*)\]$/, '$1').toLowerCase();

  function isDirect(host, port) {
    if (host === bare(proxy.hostname) && Number(port) === Number(proxy.port)) return true;
    return direct.some((name) => name === '*' || name === host
      || (name.startsWith('.') && host.endsWith(name)));
  }

  // Calls back with a socket that the proxy connects to the host.
  function tunnel(host, port, callback) {
    const path = `${net.isIPv6(host) ? `[${host}]` : host}:${port}`;
    const connect = () => net.connect(proxy.port, proxy.hostname);
    const request = http.request({ method: 'CONNECT', path, headers: { host: path }, createConnection: connect });
    request.once('error', callback);
    request.once('connect', (answer, socket, head) => {
      request.off('error', callback);
      if (answer.statusCode !== 200) {
        socket.destroy();
        callback(new Error(`the proxy says ${answer.statusCode} ${answer.statusMessage}`));
        return;
      }
      if (head.length) socket.unshift(head);
      callback(null, socket);
    });
    request.end();
  }

  // All agents of http and https: they connect by their prototype's function.
  function patch(prototype, port, finish) {
    const original = prototype.createConnection;
    prototype.createConnection = function createConnection(options, callback) {
      const host = options && options.host && bare(String(options.host));
      if (!host || options.socketPath || typeof callback !== 'function' || isDirect(host, options.port)) {
        return original.apply(this, arguments);
      }
      tunnel(host, options.port || port, (error, socket) => {
        if (error) callback(error);
        else callback(null, finish(original, this, options, socket));
      });
    };
  }
  patch(http.Agent.prototype, 80, (original, agent, options, socket) => socket);
  patch(https.Agent.prototype, 443, (original, agent, options, socket) =>
    original.call(agent, { ...options, socket }));

  // fetch, and undici from npm, which uses the same dispatcher unless told otherwise
  void globalThis.Response;
  const key = Symbol.for('undici.globalDispatcher.1');
  const Agent = globalThis[key]?.constructor;
  if (!Agent) return;
  globalThis[key] = new Agent({
    connect(options, callback) {
      const host = bare(options.hostname);
      const isTls = options.protocol === 'https:';
      const port = Number(options.port) || (isTls ? 443 : 80);
      const done = (error, socket) => {
        if (error) { callback(error); return; }
        if (!isTls) { callback(null, socket); return; }
        const servername = options.servername || (net.isIP(host) ? '' : host);
        const secure = tls.connect({ socket, servername, ALPNProtocols: ['http/1.1'] });
        secure.once('error', callback);
        secure.once('secureConnect', () => { secure.off('error', callback); callback(null, secure); });
      };
      if (!isDirect(host, port)) { tunnel(host, port, done); return; }
      const socket = net.connect(port, host);
      socket.once('error', callback);
      socket.once('connect', () => { socket.off('error', callback); done(null, socket); });
    },
  });
}
