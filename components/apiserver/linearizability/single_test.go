package linearizability

import (
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/testing/testdisk"
	"hyperkube/internal/testing/testport"
	"hyperkube/internal/testing/testwait"
)

// startSingle runs a single member and an API server in one process, with its data in dir. mayExit are
// errors with which the process may exit.
func startSingle(t *testing.T, dir string, mayExit ...string) (*cluster, *process) {
	t.Helper()
	// The network namespace of the tests is new.
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	set, err := pki.Ensure(filepath.Join(t.TempDir(), "pki"), pki.Config{NodeName: "test"})
	if err != nil {
		t.Fatal(err)
	}
	config := child{
		Name: "single", Data: filepath.Join(dir, "etcd"), PKI: set.Dir, API: testport.Address(t),
		ClientURL: "http://" + testport.Address(t), PeerURL: "http://" + testport.Address(t),
	}
	p := startProcess(t, nil, config, mayExit...)
	return &cluster{t: t, servers: []*server{newServer(t, "the server", config.API, set.CA)}, members: []string{config.ClientURL}}, p
}

// milliseconds returns a random duration below n milliseconds.
func milliseconds(n int) time.Duration { return rand.N(time.Duration(n) * time.Millisecond) }

// TestKill kills the process of the member and the API server.
func TestKill(t *testing.T) {
	t.Parallel()
	began := time.Now()
	c, p := startSingle(t, t.TempDir())
	kill := fault{"kill", func() { p.kill(milliseconds(500)) }}
	for more := until(); more(c.total.rounds); {
		c.round(kill, kill, kill)
	}
	c.log(began)
}

// TestSlowDisk suspends the writes to the disk for moments, and kills the process meanwhile.
func TestSlowDisk(t *testing.T) {
	t.Parallel()
	began := time.Now()
	disk := testdisk.NewDevice(t, 256<<20)
	c, p := startSingle(t, disk.Path())
	slow := fault{"slow disk", func() {
		thaw := disk.Freeze()
		time.Sleep(300*time.Millisecond + milliseconds(700))
		thaw()
	}}
	killed := fault{"slow disk, kill", func() {
		thaw := disk.Freeze()
		p.kill(milliseconds(500))
		time.Sleep(milliseconds(500))
		thaw()
	}}
	// Longer than the timeout of etcd.
	hangs := fault{"disk that hangs", func() {
		thaw := disk.Freeze()
		time.Sleep(9 * time.Second)
		thaw()
	}}
	for more := until(); more(c.total.rounds); {
		if faults := []fault{slow, slow, killed}; c.total.rounds%5 < 4 {
			c.round(faults...)
		} else {
			c.round(append(faults, hangs)...)
		}
	}
	c.log(began)
}

// TestFullDisk fills the disk. The process exits then, and starts again when there is space.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	began := time.Now()
	disk := testdisk.NewDevice(t, 256<<20)
	c, p := startSingle(t, disk.Path(), "no space left on device", "free disk space")
	c.padding = 16 << 10
	full := fault{"full disk", func() {
		exits := p.exits.Load()
		free := disk.Fill()
		testwait.Until(t, "the process to exit", func() bool { return p.exits.Load() > exits })
		time.Sleep(milliseconds(500))
		free()
	}}
	killed := fault{"full disk, kill", func() {
		free := disk.Fill()
		time.Sleep(milliseconds(500))
		p.kill(milliseconds(500))
		time.Sleep(milliseconds(500))
		free()
	}}
	for more := until(); more(c.total.rounds); {
		c.round(full, killed)
	}
	c.log(began)
}
