package store

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"go.uber.org/goleak"
)

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
	client, _ := startEtcd(child{}, dir)
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

// Every acknowledged write is there after the process was killed at any
// instant, again and again on the same data.
func TestKill(t *testing.T) {
	ctx := testContext(t)
	dir := t.TempDir()
	acknowledged := make(map[string]string)
	var revision int64
	for round := range 4 {
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
			if n == 300+round*137 {
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
		stop()
		stopEtcd()
	}
}
