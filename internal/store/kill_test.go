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

	"go.uber.org/goleak"

	"hyperkube/internal/testetcd"
)

var long = flag.Bool("long", false, "kill 200 times, and look for histories that do not fit for a minute")

func TestMain(m *testing.M) {
	if dir := os.Getenv("STORE_TEST_WRITE"); dir != "" {
		os.Exit(writeUntilKilled(dir))
	}
	goleak.VerifyTestMain(m)
}

// child is what the other process of TestKill hands startEtcd for a test.
type child struct{ testing.TB }

func (child) Helper() {}

func (child) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	os.Exit(1)
}

// writeUntilKilled creates, changes and deletes objects and prints each write
// once it has been acknowledged: key, value ("-" when deleted), revision.
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

// told is a write that was acknowledged.
type told struct{ key, value string }

// Every acknowledged write is there after the process was killed at any
// instant, again and again on the same data, and a watch from before tells each
// of them once.
func TestKill(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	acknowledged := make(map[string]string)
	var revision int64
	rounds := 4
	if *long {
		rounds = 200
	}
	var before *seen
	for round := range rounds {
		writes := make(map[int64]told)
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
			writes[revision] = told{key, value}
			if n == 300+round%8*137 {
				_ = cmd.Process.Kill()
			}
		}
		_ = cmd.Wait()
		if n < 300 {
			t.Fatalf("round %d: the other process ended after %d writes", round, n)
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
				// Written, but killed before that was told.
				delete(acknowledged, e.Key())
				continue
			}
			got[e.Key()] = valueOf(e)
		}
		// One that is not there may have been deleted by a write that was
		// not told; there is no more than one of these.
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
				t.Errorf("round %d: the watch has told %v, there is %v", round, before.objects, acknowledged)
			}
		}
		before = &seen{revision: page.Revision, objects: maps.Clone(acknowledged)}
		stop()
		stopEtcd()
	}
}

// seen is what a client knows that lists and watches.
type seen struct {
	revision int64
	objects  map[string]string
}

// follow takes over what a watch tells from then until the revision until. All
// writes must be told, each once and in order.
func (s *seen) follow(t *testing.T, c *Collection, until int64, writes map[int64]told) {
	t.Helper()
	w, err := c.Watch(t.Context(), WatchOptions{Since: s.revision})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for len(writes) > 0 || s.revision < until {
		batch, err := w.Next(t.Context())
		if err != nil {
			t.Fatalf("%d acknowledged writes were not told: %v", len(writes), err)
		}
		for _, ev := range batch.Events {
			if ev.Revision <= s.revision {
				t.Errorf("revision %d was told after %d", ev.Revision, s.revision)
			}
			s.revision = ev.Revision
			var is told
			if ev.Current == nil {
				is = told{ev.Previous.Key(), "-"}
				delete(s.objects, is.key)
			} else {
				is = told{ev.Current.Key(), valueOf(ev.Current)}
				s.objects[is.key] = is.value
			}
			if was, ok := writes[ev.Revision]; ok && was != is {
				t.Errorf("at %d %v was told, %v was acknowledged", ev.Revision, is, was)
			}
			delete(writes, ev.Revision)
		}
	}
}
