package etcd

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

var long = flag.Bool("long", false, "run the long variants of tests that kill processes")

// startAndExit runs in the child process of TestKillAtFirstStart and TestStartBusy: it starts a
// member in dir, writes n keys unless it is killed before, and exits without stopping etcd.
func startAndExit(dir string) int {
	writes := 0
	if _, err := fmt.Sscan(os.Getenv("ETCD_TEST_WRITES"), &writes); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if os.Getenv("ETCD_TEST_BUSY") != "" {
		for range 4 * runtime.GOMAXPROCS(0) {
			go func() {
				for i := 0; ; i++ {
					_ = i * i
				}
			}()
		}
	}
	s, err := runMember(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for i := range writes {
		if _, err := s.Client().Put(context.Background(), fmt.Sprint("k", i), "v"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println(i + 1)
	}
	return 0
}

// child returns a command that runs startAndExit.
func child(t *testing.T, dir string, writes int, busy bool) (cmd *exec.Cmd, out, errs *bytes.Buffer) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), "ETCD_TEST_START="+dir, fmt.Sprint("ETCD_TEST_WRITES=", writes))
	if busy {
		cmd.Env = append(cmd.Env, "ETCD_TEST_BUSY=1")
	}
	out, errs = new(bytes.Buffer), new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, errs
	return cmd, out, errs
}

// TestStartBusy checks that a member that exited after its first writes starts again on a busy
// machine: it must not campaign before raft has registered that its log is applied.
func TestStartBusy(t *testing.T) {
	rounds := 5
	if *long {
		rounds = 200
	}
	dir := filepath.Join(t.TempDir(), "data")
	cmd, _, errs := child(t, dir, 250, false)
	if err := cmd.Run(); err != nil {
		t.Fatal(err, errs)
	}
	for round := range rounds {
		copied := filepath.Join(t.TempDir(), "data")
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		cmd, _, errs := child(t, copied, 1, true)
		if err := cmd.Run(); err != nil {
			message, _, _ := strings.Cut(errs.String(), "\ngoroutine ")
			t.Fatalf("round %d: %v: %s", round, err, message)
		}
		if err := os.RemoveAll(copied); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKillAtFirstStart checks that a member that is killed at any time during its first start
// starts again. Most steps happen in the first 100 ms.
func TestKillAtFirstStart(t *testing.T) {
	step := 10 * time.Millisecond
	if *long {
		step = 250 * time.Microsecond
	}
	for after := time.Duration(0); after < 400*time.Millisecond; after += step {
		if after > 100*time.Millisecond {
			after += 9 * step
		}
		dir := filepath.Join(t.TempDir(), "data")
		cmd, out, _ := child(t, dir, 100_000, false)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		acknowledged := strings.Count(out.String(), "\n")
		again, _, errs := child(t, dir, 1, false)
		if err := again.Run(); err != nil {
			message, _, _ := strings.Cut(errs.String(), "\ngoroutine ")
			t.Fatalf("killed after %v with %d writes: %v: %s", after, acknowledged, err, message)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLogLost checks that a log without its first entries is treated as an interrupted bootstrap,
// unless the database contains more.
func TestLogLost(t *testing.T) {
	cfg := localConfig(t)
	s, stop := start(t, cfg)
	for range 10 {
		if _, err := s.Client().Put(context.Background(), "k", "v"); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	log := filepath.Join(cfg.DataDir, "member", "wal", firstSegment)
	// The first bytes contain the checksum, metadata and the empty snapshot.
	if err := os.Truncate(log, 80); err != nil {
		t.Fatal(err)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "restore a backup") {
		t.Errorf("with a database that contains more than the log: %v", err)
	}
	if err := os.Remove(filepath.Join(cfg.DataDir, "member", "snap", "db")); err != nil {
		t.Fatal(err)
	}
	_, stop = start(t, cfg)
	stop()
}
