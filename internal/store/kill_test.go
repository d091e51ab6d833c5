package store

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"testing"

	"hyperkube/internal/testing/leakcheck"
	"hyperkube/internal/testing/testetcd"
)

var long = flag.Bool("long", false, "kill 200 times, and check histories for a minute")

func TestMain(m *testing.M) {
	if dir := os.Getenv("STORE_TEST_WRITE"); dir != "" {
		os.Exit(writeUntilKilled(dir))
	}
	leakcheck.Main(m)
}

// child replaces testing.TB for startEtcd in the child process of TestKill.
type child struct{ testing.TB }

func (child) Helper() {}

func (child) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	os.Exit(1)
}

// writeUntilKilled creates, updates and deletes objects and prints each acknowledged write: key,
// value ("-" when deleted) and revision.
func writeUntilKilled(dir string) int {
	client, _ := startMember(child{}, testetcd.Config{Dir: dir, Fsync: true})
	s, _ := startStore(child{}, Config{Client: client})
	c := s.Collection(collectionConfig("configmaps"))
	ctx := context.Background()
	for i := 0; ; i++ {
		key := fmt.Sprint("ns/", i%50)
		value := fmt.Sprint(i)
		var op Op
		current, err := c.Get(ctx, key, -1)
		switch {
		case err != nil:
			op = c.Create(key, configMap(key, value), 0)
		case i%7 == 0:
			op, value = c.Delete(current), "-"
		default:
			op = c.Update(current, configMap(key, value), 0)
		}
		_, revision, err := s.Commit(ctx, op)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println(key, value, revision)
	}
}

// acknowledgedWrite is an acknowledged write.
type acknowledgedWrite struct{ key, value string }

// TestKill kills the process at random times, repeatedly with the same data, and checks that no
// acknowledged write is lost, and that a watch from before reports each of them once.
func TestKill(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	acknowledged := make(map[string]string)
	var revision int64
	rounds := 4
	if *long {
		rounds = 200
	}
	var before *watchClient
	for round := range rounds {
		writes := make(map[int64]acknowledgedWrite)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "STORE_TEST_WRITE="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		n := 0
		for lines := bufio.NewScanner(out); lines.Scan(); n++ {
			var key, value string
			if _, err := fmt.Sscan(lines.Text(), &key, &value, &revision); err != nil {
				t.Fatal(err)
			}
			acknowledged[key] = value
			writes[revision] = acknowledgedWrite{key, value}
			if n == 300+round%8*137 {
				_ = cmd.Process.Kill()
			}
		}
		_ = cmd.Wait()
		if n < 300 {
			t.Fatalf("round %d: the child process exited after %d writes", round, n)
		}
		client, stopEtcd := startEtcd(t, dir)
		s, stop := startStore(t, Config{Client: client})
		c := s.Collection(collectionConfig("configmaps"))
		page, err := c.List(ctx, ListOptions{Revision: -1})
		if err != nil {
			t.Fatal(err)
		}
		if page.Revision < revision {
			t.Errorf("round %d: revision %d, %d was acknowledged", round, page.Revision, revision)
		}
		got := make(map[string]string)
		for _, e := range page.Entries {
			if e.Revision() > revision {
				// Written, but killed before it was acknowledged.
				delete(acknowledged, e.Key())
				continue
			}
			got[e.Key()] = valueOf(e)
		}
		// A missing key may have been deleted by a write that was not acknowledged. There is at
		// most one of these.
		missing := 0
		for key, value := range acknowledged {
			if value != "-" && got[key] == "" {
				missing++
				continue
			}
			if value == "-" && got[key] != "" || value != "-" && got[key] != value {
				t.Errorf("round %d: %s is %q, %q was acknowledged", round, key, got[key], value)
			}
		}
		if missing > int(page.Revision-revision) {
			t.Errorf("round %d: %d objects are missing", round, missing)
		}
		acknowledged = make(map[string]string)
		for _, e := range page.Entries {
			acknowledged[e.Key()] = valueOf(e)
		}
		if before != nil {
			before.follow(t, c, page.Revision, writes)
			if !maps.Equal(before.objects, acknowledged) {
				t.Errorf("round %d: the watch has reported %v, expected %v", round, before.objects, acknowledged)
			}
		}
		before = &watchClient{revision: page.Revision, objects: maps.Clone(acknowledged)}
		stop()
		stopEtcd()
	}
}

// watchClient is the state of a client that lists and watches.
type watchClient struct {
	revision int64
	objects  map[string]string
}

// follow applies the events of a watch from s.revision to until. All writes must be reported, once
// and in order.
func (s *watchClient) follow(t *testing.T, c *Collection, until int64, writes map[int64]acknowledgedWrite) {
	t.Helper()
	w, err := c.Watch(t.Context(), WatchOptions{Since: s.revision})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for len(writes) > 0 || s.revision < until {
		batch, err := w.Next(t.Context())
		if err != nil {
			t.Fatalf("%d acknowledged writes were not reported: %v", len(writes), err)
		}
		for _, ev := range batch.Events {
			if ev.Revision <= s.revision {
				t.Errorf("revision %d was reported after %d", ev.Revision, s.revision)
			}
			s.revision = ev.Revision
			var is acknowledgedWrite
			if ev.Current == nil {
				is = acknowledgedWrite{ev.Previous.Key(), "-"}
				delete(s.objects, is.key)
			} else {
				is = acknowledgedWrite{ev.Current.Key(), valueOf(ev.Current)}
				s.objects[is.key] = is.value
			}
			if was, ok := writes[ev.Revision]; ok && was != is {
				t.Errorf("at %d %v was reported, %v was acknowledged", ev.Revision, is, was)
			}
			delete(writes, ev.Revision)
		}
	}
}
