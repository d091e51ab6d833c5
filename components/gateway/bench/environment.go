//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"hyperkube/internal/testing/testport"
)

// environment contains the programs of the benchmark, and the files in dir that they use.
type environment struct {
	dir, caddy, profile   string
	certificate, key, pem string // file names; pem contains both
	backend               int    // port
	proxies               map[string]*proxy
	started               []*exec.Cmd
	releases              []func()
}

// proxy is a running proxy with its ports.
type proxy struct {
	cmd        *exec.Cmd
	plain, tls int
}

// newEnvironment writes a certificate to dir. The caller must call close.
func newEnvironment(dir, caddy, profile string) (*environment, error) {
	if runtime.NumCPU() < 2 {
		return nil, errors.New("the benchmark requires two CPUs, one of them for the proxy alone")
	}
	e := &environment{dir: dir, caddy: caddy, profile: profile, proxies: map[string]*proxy{}}
	// The workers of nginx run as another user.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	if e.certificate, err = e.write("tls.crt", certificate); err != nil {
		return nil, err
	}
	if e.key, err = e.write("tls.key", keyPEM); err != nil {
		return nil, err
	}
	e.pem, err = e.write("tls.pem", append(certificate, keyPEM...))
	return e, err
}

// write writes a file to the directory and returns its name.
func (e *environment) write(name string, content []byte) (string, error) {
	file := filepath.Join(e.dir, name)
	return file, os.WriteFile(file, content, 0o600)
}

// close stops all programs.
func (e *environment) close() {
	for _, cmd := range e.started {
		_ = cmd.Process.Signal(syscall.SIGTERM) // fails if the process has exited
	}
	for _, cmd := range e.started {
		_ = cmd.Wait() // the status after SIGTERM differs among the programs
	}
	for _, release := range e.releases {
		release()
	}
}

// port claims a port until close.
func (e *environment) port() (int, error) {
	port, release, err := testport.Claim()
	if err == nil {
		e.releases = append(e.releases, release)
	}
	return port, err
}

// start starts a program with the name on CPUs, and waits until it listens on the ports.
func (e *environment) start(ctx context.Context, name, cpus string, command []string, ports ...int) (*exec.Cmd, error) {
	cmd := exec.Command("taskset", append([]string{"-c", cpus}, command...)...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.Env = append(os.Environ(), "HOME="+e.dir, "XDG_CONFIG_HOME="+e.dir, "XDG_DATA_HOME="+e.dir)
	if name == "gateway" {
		cmd.Env = append(cmd.Env, "GOGC=400", "GOMEMLIMIT=400MiB") // as in the add-on
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", command[0], err)
	}
	e.started = append(e.started, cmd)
	for _, port := range ports {
		for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", "127.0.0.1:"+strconv.Itoa(port))
			if err == nil {
				if err := conn.Close(); err != nil {
					return nil, err
				}
				break
			}
			if time.Since(began) > 20*time.Second || ctx.Err() != nil {
				_ = cmd.Process.Kill() // the error of the connection is returned
				return nil, fmt.Errorf("starting %s: %w", strings.Join(command, " "), err)
			}
		}
	}
	return cmd, nil
}

// clientCPUs are those that the proxies do not use.
func clientCPUs() string { return fmt.Sprintf("1-%d", runtime.NumCPU()-1) }

// startBackend starts the nginx that all proxies forward to.
func (e *environment) startBackend(ctx context.Context) error {
	content := filepath.Join(e.dir, "content")
	if err := os.Mkdir(content, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(content, "1m"), make([]byte, 1<<20), 0o644); err != nil { //nolint:gosec // nginx reads it as another user
		return err
	}
	var err error
	if e.backend, err = e.port(); err != nil {
		return err
	}
	command, err := e.nginx("backend", fmt.Sprintf(`
		server {
			listen 127.0.0.1:%d reuseport;
			keepalive_requests 1000000000;
			location = / { return 200 "Hello from the backend of the benchmark, in some fifty bytes.\n"; }
			location / { root %s; }
		}`, e.backend, content))
	if err == nil {
		_, err = e.start(ctx, "backend", clientCPUs(), command, e.backend)
	}
	return err
}

// nginx writes a configuration of nginx with the servers and returns the command that runs it.
func (e *environment) nginx(name, servers string) ([]string, error) {
	file, err := e.write(name+".conf", fmt.Appendf(nil, `
		daemon off;
		pid %[1]s/%[2]s.pid;
		error_log stderr error;
		worker_processes 1;
		events { worker_connections 4096; }
		http {
			access_log off;
			sendfile on;
			tcp_nopush on;
			client_body_temp_path %[1]s/%[2]s-body;
			proxy_temp_path %[1]s/%[2]s-proxy;
			fastcgi_temp_path %[1]s/%[2]s-fastcgi;
			uwsgi_temp_path %[1]s/%[2]s-uwsgi;
			scgi_temp_path %[1]s/%[2]s-scgi;
			%[3]s
		}`, e.dir, name, servers))
	return []string{"nginx", "-c", file, "-e", "stderr"}, err
}

// startProxy starts a proxy on CPU 0.
func (e *environment) startProxy(ctx context.Context, name string) error {
	plain, err := e.port()
	if err != nil {
		return err
	}
	secure, err := e.port()
	if err != nil {
		return err
	}
	command, err := e.command(name, plain, secure)
	if err != nil {
		return err
	}
	cmd, err := e.start(ctx, name, "0", command, plain, secure)
	e.proxies[name] = &proxy{cmd, plain, secure}
	return err
}

// command writes the configuration of a proxy and returns the command that runs it. All proxies keep connections to the
// backend, set the X-Forwarded headers, and write no access log.
func (e *environment) command(name string, plain, secure int) ([]string, error) {
	switch name {
	case "gateway":
		data, err := json.Marshal(gatewayPorts{int32(plain), int32(secure), fmt.Sprintf("127.0.0.1:%d", e.backend), e.certificate, e.key}) //nolint:gosec // ports
		if err != nil {
			return nil, err
		}
		file, err := e.write("gateway.json", data)
		if err != nil {
			return nil, err
		}
		self, err := os.Executable()
		return []string{self, "-serve-gateway", file, "-profile", e.profile}, err
	case "nginx":
		return e.nginx("nginx", fmt.Sprintf(`
			upstream backend { server 127.0.0.1:%d; keepalive 256; keepalive_requests 1000000000; }
			server {
				listen 127.0.0.1:%d;
				listen 127.0.0.1:%d ssl http2;
				ssl_certificate %s;
				ssl_certificate_key %s;
				keepalive_requests 1000000000;
				location / {
					proxy_pass http://backend;
					proxy_http_version 1.1;
					proxy_max_temp_file_size 0;
					proxy_set_header Connection "";
					proxy_set_header Host $http_host;
					proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
					proxy_set_header X-Forwarded-Host $http_host;
					proxy_set_header X-Forwarded-Proto $scheme;
				}
			}`, e.backend, plain, secure, e.certificate, e.key))
	case "haproxy":
		file, err := e.write("haproxy.cfg", fmt.Appendf(nil, `
global
	nbthread 1
defaults
	mode http
	timeout connect 5s
	timeout client 60s
	timeout server 60s
	option forwardfor
	http-reuse always
frontend gateway
	bind 127.0.0.1:%d
	bind 127.0.0.1:%d ssl crt %s alpn h2,http/1.1
	http-request set-header X-Forwarded-Host %%[req.hdr(Host)]
	http-request set-header X-Forwarded-Proto https if { ssl_fc }
	http-request set-header X-Forwarded-Proto http if !{ ssl_fc }
	default_backend backend
backend backend
	server backend 127.0.0.1:%d pool-max-conn 256
`, plain, secure, e.pem, e.backend))
		return []string{"haproxy", "-db", "-f", file}, err
	case "caddy":
		file, err := e.write("Caddyfile", fmt.Appendf(nil, `
{
	admin off
	auto_https off
	persist_config off
}
http://localhost:%[1]d, http://127.0.0.1:%[1]d {
	bind 127.0.0.1
	reverse_proxy 127.0.0.1:%[3]d {
		transport http {
			keepalive_idle_conns_per_host 256
			compression off
		}
	}
}
https://localhost:%[2]d, https://127.0.0.1:%[2]d {
	bind 127.0.0.1
	tls %[4]s %[5]s
	reverse_proxy 127.0.0.1:%[3]d {
		transport http {
			keepalive_idle_conns_per_host 256
			compression off
		}
	}
}
`, plain, secure, e.backend, e.certificate, e.key))
		return []string{e.caddy, "run", "--config", file, "--adapter", "caddyfile"}, err
	}
	return nil, fmt.Errorf("unknown proxy %q", name)
}

// measure runs a case once.
func (e *environment) measure(ctx context.Context, name string, c *benchCase, duration time.Duration) (result, error) {
	p := e.proxies[name]
	url := fmt.Sprintf("http://localhost:%d%s", p.plain, c.path)
	if c.tls {
		url = fmt.Sprintf("https://localhost:%d%s", p.tls, c.path)
	}
	log := filepath.Join(e.dir, "client.log")
	_ = os.Remove(log) // of the previous measurement
	before := cpuOf(p.cmd.Process.Pid)
	command := append([]string{"-c", clientCPUs()}, c.command(url, duration, log)...)
	output, err := exec.CommandContext(ctx, "taskset", command...).CombinedOutput()
	if err != nil {
		return result{}, fmt.Errorf("running the client: %w\n%s", err, output)
	}
	used := cpuOf(p.cmd.Process.Pid) - before
	r, err := c.parse(string(output), log)
	r.cpu = used
	return r, err
}

// cpuOf returns the user and system time of a process and its children. Processes that have exited in the meantime
// count as zero.
func cpuOf(pid int) time.Duration {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	total := time.Duration(0)
	_, rest, _ := strings.Cut(string(stat), ") ")
	if fields := strings.Fields(rest); len(fields) > 12 {
		for _, field := range fields[11:13] {
			ticks, _ := strconv.Atoi(field)
			total += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for child := range strings.FieldsSeq(string(children)) {
		if id, err := strconv.Atoi(child); err == nil {
			total += cpuOf(id)
		}
	}
	return total
}
