package images

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distribution/reference"
)

// tarOf creates a tar archive with the given entries.
func tarOf(entries ...tar.Header) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		if err := w.WriteHeader(&h); err == nil {
			_, _ = w.Write(bytes.Repeat([]byte("x"), int(h.Size)))
		}
	}
	_ = w.Close()
	return b.Bytes()
}

func seeds(f *testing.F) {
	f.Add(tarOf(tar.Header{Name: "a/b", Size: 3, Mode: 0o644}, tar.Header{Name: "a/.wh.b"}, tar.Header{Name: "a/.wh..wh..opq"}))
	f.Add(tarOf(tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../../.."}, tar.Header{Name: "l/canary", Size: 3}))
	f.Add(tarOf(tar.Header{Name: "/../canary", Size: 3}, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "../canary"}))
	f.Add(tarOf(tar.Header{Name: "d", Typeflag: tar.TypeDir, Mode: 0o755}, tar.Header{Name: "d/e/f", Size: 1}, tar.Header{Name: "d", Typeflag: tar.TypeFifo}))
	f.Add(tarOf(tar.Header{Name: "x", Size: 1, PAXRecords: map[string]string{"SCHILY.xattr.trusted.overlay.redirect": "/etc"}}))
}

// FuzzUnpack unpacks arbitrary data and checks that nothing outside the target directory changes.
func FuzzUnpack(f *testing.F) {
	if os.Geteuid() != 0 {
		f.Skip("needs root to set owners")
	}
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		top := t.TempDir()
		canary := filepath.Join(top, "canary")
		if err := os.WriteFile(canary, []byte("alive"), 0o600); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(top, "a", "b", "fs")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		_ = unpack(context.Background(), dir, bytes.NewReader(data))
		if got, err := os.ReadFile(canary); err != nil || string(got) != "alive" {
			t.Fatalf("the canary is %q, %v", got, err)
		}
		for name, want := range map[string]int{top: 2, filepath.Join(top, "a"): 1, filepath.Join(top, "a", "b"): 1} {
			if entries, err := os.ReadDir(name); err != nil || len(entries) != want {
				t.Fatalf("%s holds %v, %v", name, entries, err)
			}
		}
	})
}

// FuzzImport imports arbitrary data and checks that it fails or creates complete images.
func FuzzImport(f *testing.F) {
	if os.Geteuid() != 0 {
		f.Skip("needs root to set owners")
	}
	seeds(f)
	manifest := `[{"Config":"c.json","RepoTags":["a:b"],"Layers":["l.tar"]}]`
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, text := range map[string]string{"manifest.json": manifest, "c.json": `{"rootfs":{"diff_ids":["sha256:00"]}}`, "l.tar": "", "index.json": `{"manifests":[{"digest":"sha256:x"}]}`} {
		_ = w.WriteHeader(&tar.Header{Name: name, Size: int64(len(text)), Mode: 0o600})
		_, _ = w.Write([]byte(text))
	}
	_ = w.Close()
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Open(t.TempDir(), nil)
		if err != nil {
			t.Fatal(err)
		}
		list, err := s.Import(context.Background(), bytes.NewReader(data))
		if err == nil && len(list) == 0 {
			t.Error("neither images nor an error")
		}
		for _, i := range list {
			if !s.layers.hasAll(i.Image) {
				t.Errorf("image %s is not whole", i.ID)
			}
		}
	})
}

func FuzzNormalize(f *testing.F) {
	for _, s := range []string{"busybox", "a/b", "localhost/x", "Host/x", "x:tag", "h:5000/x", "[::1]:5/x", "a__b", "a--b", "a.-b", "index.docker.io/x", "docker.io/x", "a/", "/a", "a:", "a@", "X", "a..b", "a_b.c-d/e:F"} {
		f.Add(s)
	}
	f.Add("a.b:5000/c/d:e@sha256:0000000000000000000000000000000000000000000000000000000000000000")
	f.Fuzz(func(t *testing.T, ref string) {
		one, err := Normalize(ref)
		want, wantErr := reference.ParseDockerRef(ref)
		if wantErr == nil && reference.Domain(want) == "" {
			// This is not a valid registry but would be parsed as a repository without one; such an
			// image cannot be pulled.
			wantErr = errors.New("no registry")
		}
		if (err == nil) != (wantErr == nil) || err == nil && one != want.String() {
			t.Fatalf("%q is %q, %v, want %v, %v", ref, one, err, want, wantErr)
		}
		if err != nil {
			return
		}
		if two, err := Normalize(one); err != nil || one != two {
			t.Errorf("%q is %q is %q, %v", ref, one, two, err)
		}
	})
}

// FuzzRegistries checks that each accepted registry configuration gives endpoints and references, or an
// error that the pull reports.
func FuzzRegistries(f *testing.F) {
	f.Add([]byte("mirrors:\n  docker.io:\n    endpoint: [\"https://m.example/v2/x\"]\n    rewrite: {\"^library/(.*)\": \"a/$1\"}\n"), "docker.io/library/a:b")
	f.Add([]byte("mirrors: {\"*\": {endpoint: [http://m], rewrite: {\".*\": \"\"}}}\nconfigs: {m: {auth: {auth: eDp5}, tls: {ca_file: /x}}}\n"), "r.example/a@sha256:00")
	f.Fuzz(func(t *testing.T, data []byte, image string) {
		r, err := parseRegistries(data)
		normal, invalid := Normalize(image)
		if err != nil || invalid != nil {
			return
		}
		host, _, _ := strings.Cut(normal, "/")
		endpoints, err := r.endpoints(host)
		if err != nil {
			return
		}
		if len(endpoints) == 0 {
			t.Error("no endpoint")
		}
		for _, e := range endpoints {
			ref, err := e.reference(normal)
			if err == nil && ref.Context().RegistryStr() == "" {
				t.Errorf("%s has no registry", ref)
			}
		}
	})
}
