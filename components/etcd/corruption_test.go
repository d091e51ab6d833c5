package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tornKeys is the number of keys in the data of TestTorn. The value of a key is tornValue.
const tornKeys = 300

func tornKey(i int) string   { return fmt.Sprintf("k%03d", i) }
func tornValue(i int) string { return strings.Repeat(tornKey(i), 50) }

// readAndExit runs in the child process of TestTorn: it starts a member in dir and prints whether
// all keys are present.
func readAndExit(dir string) int {
	s, err := runMember(dir)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for i := range tornKeys {
		got, err := s.Client().Get(context.Background(), tornKey(i))
		if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != tornValue(i) {
			fmt.Println(tornKey(i), "is wrong:", got, err)
			return 1
		}
	}
	fmt.Println("whole")
	return 0
}

// readTorn runs readAndExit and returns its output.
func readTorn(t *testing.T, dir string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), "ETCD_TEST_READ="+dir)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// writeTorn creates member data with TestTorn's keys.
func writeTorn(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "data")
	s, stop := start(t, aloneAnywhere(dir))
	defer stop()
	for i := range tornKeys {
		if _, err := s.Client().Put(t.Context(), tornKey(i), tornValue(i)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestFatalStart checks that a startup failure at which etcd would exit the process is returned as
// an error.
func TestFatalStart(t *testing.T) {
	dir := writeTorn(t)
	if err := unknownRecord(dir); err != nil {
		t.Fatal(err)
	}
	text, err := readTorn(t, dir)
	if err == nil || !strings.Contains(text, "the write-ahead log is damaged") || !strings.Contains(text, "unexpected block type") {
		t.Errorf("%v: %s", err, text)
	}
}

// unknownRecord changes the type of an entry in the middle of the log, which no checksum covers.
func unknownRecord(dir string) error {
	file := filepath.Join("member", "wal", firstSegment)
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return err
	}
	// A record begins with field 1, its type (2 is an entry), and field 2, at a multiple of 8.
	at := len(bytes.TrimRight(data, "\x00")) / 16 * 8
	for !bytes.HasPrefix(data[at:], []byte{8, 2, 16}) {
		at += 8
	}
	return overwrite(file, int64(at)+1, []byte{66})(dir)
}

// TestTorn damages files at random positions. A member must either have all acknowledged data, or
// fail to start with advice. It must never panic or start with missing data.
func TestTorn(t *testing.T) {
	rounds, seed := 8, uint64(time.Now().UnixNano())
	if *long {
		rounds = 500
	}
	t.Logf("the seed is %d", seed)
	whole := writeTorn(t)
	outcomes := map[string]int{}
	for round := range rounds {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		dir := filepath.Join(t.TempDir(), "data")
		if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
			t.Fatal(err)
		}
		what, err := tear(dir, random)
		if err != nil {
			t.Fatal(err)
		}
		text, err := readTorn(t, dir)
		kind, _, _ := strings.Cut(what, " ")
		switch {
		case err == nil && text == "whole":
			outcomes[kind+" harmless"]++
		case strings.Contains(text, "hyperkube snapshot restore") && !strings.Contains(text, "goroutine "):
			outcomes[kind+" reported"]++
		default:
			if len(text) > 1500 {
				text = text[:1500]
			}
			t.Errorf("round %d, %s: %v\n%s", round, what, err, text)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	t.Log(outcomes)
}

// tear damages one file of a member's data as a failing disk does: a truncated file, an unwritten
// sector, a flipped bit. It returns a description of the damage.
func tear(dir string, random *rand.Rand) (string, error) {
	patterns := []string{"member/wal/*.wal", "member/snap/db", "member/snap/*.snap"}
	kind := random.IntN(len(patterns))
	files, err := filepath.Glob(filepath.Join(dir, patterns[kind]))
	if err != nil {
		return "", err
	}
	if len(files) == 0 {
		return "", errors.New("no file like " + patterns[kind])
	}
	file := files[random.IntN(len(files))]
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	used := len(data)
	for used > 0 && data[used-1] == 0 {
		used--
	}
	at := random.IntN(used)
	name := filepath.Base(file)
	switch how := random.IntN(3); {
	case how == 0:
		return fmt.Sprintf("%s cut off at %d of %d", filepath.Ext(name)+"-end", at, used), os.Truncate(file, int64(at))
	case how == 1:
		size := 512
		if name == "db" {
			size = 4096 // no checksums: damage smaller than a page is undetectable
		}
		at -= at % size
		return fmt.Sprintf("%s zeroes at %d of %d", filepath.Ext(name)+"-sector", at, used), overwrite(file[len(dir):], int64(at), make([]byte, size))(dir)
	case name == "db":
		return "db-head", overwrite(file[len(dir):], int64(random.IntN(64)), []byte{byte(random.Int())})(dir)
	default:
		changed := data[at] ^ 1<<random.IntN(8)
		return fmt.Sprintf("%s changed at %d of %d", filepath.Ext(name)+"-bit", at, used), overwrite(file[len(dir):], int64(at), []byte{changed})(dir)
	}
}
