package vm

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// secretText is what a pod sends to a pod of another node.
const secretText = "this-must-be-encrypted"

// encryptedPods are a server and a client on different nodes.
const encryptedPods = `
apiVersion: v1
kind: Pod
metadata: {name: server, labels: {app: server}}
spec:
  nodeName: hk-2
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: ` + busybox + `
    command: [sh, -c, "mkdir /www; echo ` + secretText + ` >/www/index.html; exec httpd -f -p 8080 -h /www"]
    readinessProbe: {tcpSocket: {port: 8080}}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  nodeName: hk
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: ` + busybox + `
    command: [sh, -c, "exec sleep 100000"]
---
apiVersion: v1
kind: Service
metadata: {name: server}
spec:
  selector: {app: server}
  ports: [{port: 80, targetPort: 8080}]
`

// TestWireGuard runs two nodes whose pods communicate through WireGuard, and looks at the packets between them. The key
// survives a restart of the cluster.
func TestWireGuard(t *testing.T) {
	m := newMachine(t, "bookworm", "trixie")
	before := m.takeState()
	m.up("--nodes", "2", "--pod-network", "wireguard")
	m.apply(encryptedPods)
	m.wait("condition=Ready", "pod/server", "pod/client")

	packets := m.capture("hk-nodes")
	ip := m.kubectl("get", "pod", "server", "-o", "jsonpath={.status.podIP}")
	request := func(host, port string) {
		t.Helper()
		m.eventually("a response from "+host, func() error {
			// The program wget of busybox crashes under emulation.
			out, err := m.command("kubectl", "exec", "client", "--", "sh", "-c", `printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 10 `+host+" "+port)
			if err == nil && !strings.Contains(out, secretText) {
				err = fmt.Errorf("unexpected response %q", out)
			}
			return err
		})
	}
	request(ip, "8080")
	request("server", "80")
	m.eventually("a response to a process of the node", func() error {
		_, err := m.command("curl", "-sSf", "--max-time", "10", "http://"+ip+":8080/")
		return err
	})
	encrypted, plain := packets()
	if encrypted == 0 || plain > 0 {
		t.Errorf("%d encrypted packets, and %d with the text", encrypted, plain)
	}

	key := func() string {
		return m.kubectl("get", "node", "hk", "-o", `jsonpath={.metadata.annotations.network\.hyperkube\.io/wireguard}`)
	}
	first := key()
	m.run("hyperkube", "stop")
	m.run("hyperkube", "up")
	request(ip, "8080")
	if now := key(); now != first {
		t.Errorf("the key has changed from %s to %s", first, now)
	}
	m.run("hyperkube", "reset")
	m.restored(before)
}

// capture records the packets of a link. The returned function ends this, and returns the number of WireGuard packets and
// of packets that contain secretText.
func (m *machine) capture(link string) func() (encrypted, plain int) {
	m.Helper()
	device, err := net.InterfaceByName(link)
	if err != nil {
		m.Fatal(err)
	}
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: device.Index})
	}
	if err == nil {
		// The timeout lets the goroutine see that the capture has ended.
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000})
	}
	if err != nil {
		m.Fatal(err)
	}
	var capturing sync.WaitGroup
	done := make(chan struct{})
	encrypted, plain := 0, 0
	capturing.Go(func() {
		defer unix.Close(fd)
		buffer := make([]byte, 1<<16)
		for {
			select {
			case <-done:
				return
			default:
			}
			n, _, err := unix.Recvfrom(fd, buffer, 0)
			if err != nil {
				continue // the timeout
			}
			packet := buffer[:n]
			const destinationPort = 14 + 20 + 2 // behind the headers of Ethernet and IPv4
			if n > destinationPort+2 && packet[23] == unix.IPPROTO_UDP && int(packet[destinationPort])<<8|int(packet[destinationPort+1]) == 51820 {
				encrypted++
			}
			if bytes.Contains(packet, []byte(secretText)) {
				plain++
			}
		}
	})
	return func() (int, int) {
		close(done)
		capturing.Wait()
		return encrypted, plain
	}
}
