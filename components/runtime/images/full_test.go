package images

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"hyperkube/internal/testing/testdisk"
)

// archiveOf returns a docker archive of an image with a layer for each of contents.
func archiveOf(t *testing.T, tag string, contents ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(name string, data []byte) {
		t.Helper()
		err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(data)), Mode: 0o600})
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var doc document
	doc.OS, doc.Architecture = "linux", runtime.GOARCH
	var names []string
	for i, content := range contents {
		var layer bytes.Buffer
		lw := tar.NewWriter(&layer)
		file := func(name string, typ byte, link string) {
			t.Helper()
			h := tar.Header{Name: name, Typeflag: typ, Linkname: link, Mode: 0o755}
			if typ == tar.TypeReg {
				h.Size = int64(len(content))
			}
			err := lw.WriteHeader(&h)
			if err == nil && typ == tar.TypeReg {
				_, err = lw.Write([]byte(content))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		file("dir/", tar.TypeDir, "")
		file("dir/file", tar.TypeReg, "")
		file("link", tar.TypeSymlink, "dir/file")
		if err := lw.Close(); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(layer.Bytes())
		doc.RootFS.DiffIDs = append(doc.RootFS.DiffIDs, "sha256:"+hex.EncodeToString(sum[:]))
		names = append(names, fmt.Sprint(i, ".tar"))
		add(names[i], layer.Bytes())
	}
	config, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	add("config.json", config)
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{tag}, "Layers": names}})
	if err != nil {
		t.Fatal(err)
	}
	add("manifest.json", manifest)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// checkError checks that an error names the directory, and nothing that differs with each attempt.
func checkError(t *testing.T, dir string, err error) {
	t.Helper()
	if !strings.Contains(err.Error(), dir) || regexp.MustCompile(`(layer|import)-\d`).MatchString(err.Error()) {
		t.Errorf("the error is %v", err)
	}
}

func none() func(string) bool { return func(string) bool { return false } }

// TestImportOnFullDisk makes each step of an import fail. Errors name the directory of the store, and
// neither a partial image nor a part of a layer remains, also for the next process.
func TestImportOnFullDisk(t *testing.T) {
	disk := testdisk.New(t)
	dir := filepath.Join(disk.Path, "images")
	s := openStore(t, dir)
	if _, err := s.Import(t.Context(), bytes.NewReader(archiveOf(t, "other:v1", "other"))); err != nil {
		t.Fatal(err)
	}
	archive := archiveOf(t, "box:v1", strings.Repeat("lower", 3000), strings.Repeat("upper", 10), strings.Repeat("upper", 2000))
	check := func(s *Store) {
		t.Helper()
		if list := s.List(); len(list) != 1 || !s.layers.hasAll(list[0]) {
			t.Errorf("the images are %v", list)
		}
	}
	disk.FailEach(func(int) error {
		list, err := s.Import(t.Context(), bytes.NewReader(archive))
		if err != nil {
			return err
		}
		for i, want := range []int{5 * 3000, 5 * 10, 5 * 2000} {
			if info, err := os.Stat(filepath.Join(s.LayerDir(list[0].Layers[i]), "link")); err != nil || int(info.Size()) != want {
				t.Errorf("layer %d: %v, %v", i, info, err)
			}
		}
		return s.Remove("box:v1", none)
	}, func(err error) {
		checkError(t, dir, err)
		check(s)
		if err := s.CollectPending(none); err != nil {
			t.Error(err)
		}
		for sub, want := range map[string]int{"tmp": 0, "layers": 1, "images": 1} {
			if entries, err := os.ReadDir(s.path(sub)); err != nil || len(entries) != want {
				t.Errorf("%s has %v, %v", sub, entries, err)
			}
		}
		next, err := Open(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		check(next)
	})
}

// TestMoveTagOnFullDisk checks that a tag belongs to the same image on disk and in memory if it cannot
// be moved to another image.
func TestMoveTagOnFullDisk(t *testing.T) {
	disk := testdisk.New(t)
	s := openStore(t, filepath.Join(disk.Path, "images"))
	version := 0
	move := func() error {
		_, err := s.Import(t.Context(), bytes.NewReader(archiveOf(t, "box:v1", fmt.Sprint(version))))
		return err
	}
	if err := move(); err != nil {
		t.Fatal(err)
	}
	owners := func(s *Store) (tagged, named string) {
		t.Helper()
		for _, image := range s.List() {
			for _, tag := range image.Tags {
				if strings.HasSuffix(tag, "/box:v1") {
					tagged += image.ID
				}
			}
		}
		image, err := s.Get("box:v1")
		if err != nil {
			t.Fatal(err)
		}
		return tagged, image.ID
	}
	same := func() {
		t.Helper()
		var records []string
		files, err := filepath.Glob(s.path("images", "*.json"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			var image Image
			data, err := os.ReadFile(file)
			if err == nil {
				err = json.Unmarshal(data, &image)
			}
			if err != nil {
				t.Errorf("record %s: %v", file, err)
			}
			if strings.Contains(string(data), "/box:v1") {
				records = append(records, image.ID)
			}
		}
		if tagged, named := owners(s); tagged != named || len(records) != 1 || records[0] != named {
			t.Errorf("the tag belongs to %s and %s, on disk to %v", tagged, named, records)
		}
	}
	version++
	disk.FailEach(func(int) error {
		_, before := owners(s)
		if err := move(); err != nil {
			return err
		}
		version++
		if _, now := owners(s); now == before {
			t.Error("the tag was not moved")
		}
		same()
		return nil
	}, func(error) {
		same()
		if err := s.Collect(none); err != nil { // the next attempt creates the layer again
			t.Error(err)
		}
	})
}

// TestLayersOnFullDisk checks that the layers that the store creates itself are complete.
func TestLayersOnFullDisk(t *testing.T) {
	disk := testdisk.New(t)
	dir := filepath.Join(disk.Path, "images")
	s := openStore(t, dir)
	program := filepath.Join(t.TempDir(), "program") // on another file system, so that it is copied
	if err := os.WriteFile(program, bytes.Repeat([]byte("x"), 20<<10), 0o755); err != nil {
		t.Fatal(err)
	}
	disk.FailEach(func(int) error {
		layer, err := s.MountPoints(t.Context(), true)
		if err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(s.LayerDir(layer), "etc/resolv.conf")); err != nil {
			t.Error(err)
		}
		image, err := s.BuiltIn(t.Context(), "box:v1", program)
		if err != nil {
			return err
		}
		if info, err := os.Stat(filepath.Join(s.LayerDir(image.Layers[0]), "hyperkube")); err != nil || info.Size() != 20<<10 {
			t.Errorf("the program is %v, %v", info, err)
		}
		return s.Remove("box:v1", none)
	}, func(err error) {
		checkError(t, dir, err)
		if _, err := s.Get("box:v1"); !errors.Is(err, ErrNotFound) {
			t.Errorf("a partial image: %v", err)
		}
		if entries, err := os.ReadDir(s.path("tmp")); err != nil || len(entries) != 0 {
			t.Errorf("left are %v, %v", entries, err)
		}
	})
}
