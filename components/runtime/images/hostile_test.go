package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// hostileLayers are layers that try to read or change files outside of their directory, or to leave
// something there that the host or overlayfs would interpret. OUT is replaced with the absolute path of
// a directory outside, which contains the file "canary" and the directory "sub". fails means that
// unpack must return an error, for example because a parent directory is a symlink to a directory that
// does not exist in the layer; the other layers are unpacked harmlessly.
var hostileLayers = map[string]struct {
	entries []tar.Header
	fails   bool
}{
	"parent directories":                    {entries: []tar.Header{regular("../../../../../../../..OUT/canary")}},
	"parent directories within a name":      {entries: []tar.Header{regular("a/../../../../../../../..OUT/canary")}},
	"absolute name":                         {entries: []tar.Header{regular("OUT/canary")}},
	"file through an absolute symlink":      {entries: []tar.Header{symlink("l", "OUT"), regular("l/canary")}, fails: true},
	"file through a relative symlink":       {entries: []tar.Header{symlink("l", "../../../../../../../..OUT"), regular("l/canary")}, fails: true},
	"file through nested symlinks":          {entries: []tar.Header{symlink("a", "OUT"), symlink("b", "a"), symlink("c", "b/sub"), regular("c/../canary")}},
	"symlink replaces the parent directory": {entries: []tar.Header{directory("d"), regular("d/x"), symlink("d", "OUT"), regular("d/canary")}, fails: true},
	"file over a symlink":                   {entries: []tar.Header{symlink("l", "OUT/canary"), regular("l")}},
	"directory over a symlink":              {entries: []tar.Header{symlink("l", "OUT"), directory("l"), regular("l/canary")}},
	"mode of a symlink's target":            {entries: []tar.Header{symlink("l", "OUT/canary"), {Name: "l", Typeflag: tar.TypeSymlink, Linkname: "OUT/canary", Mode: 0o4777}}},
	"owner of a symlink's target":           {entries: []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "OUT/canary", Uid: 1234, Gid: 1234}}},
	"hard link to an absolute name":         {entries: []tar.Header{hardLink("h", "OUT/canary"), regular("h")}, fails: true},
	"hard link to a parent directory":       {entries: []tar.Header{hardLink("h", "../../../../../../../..OUT/canary"), regular("h")}, fails: true},
	"hard link through a symlink":           {entries: []tar.Header{symlink("l", "OUT"), hardLink("h", "l/canary"), regular("h")}, fails: true},
	"hard link to a symlink":                {entries: []tar.Header{symlink("l", "OUT/canary"), hardLink("h", "l"), regular("h")}},
	"hard link to the root":                 {entries: []tar.Header{hardLink("h", "/")}, fails: true},
	"hard link to a directory":              {entries: []tar.Header{directory("d"), hardLink("h", "d")}, fails: true},
	"hard link to itself":                   {entries: []tar.Header{regular("h"), hardLink("h", "h")}},
	"whiteout through a symlink":            {entries: []tar.Header{symlink("l", "OUT"), regular("l/.wh.canary")}, fails: true},
	"opaque directory through a symlink":    {entries: []tar.Header{symlink("l", "OUT"), regular("l/.wh..wh..opq")}, fails: true},
	"whiteout of the parent directory":      {entries: []tar.Header{regular(".wh...")}, fails: true},
	"whiteout of the directory itself":      {entries: []tar.Header{regular(".wh..")}, fails: true},
	"whiteout without a name":               {entries: []tar.Header{regular(".wh.")}, fails: true},
	"FIFO through a symlink":                {entries: []tar.Header{symlink("l", "OUT"), {Name: "l/canary", Typeflag: tar.TypeFifo}}, fails: true},
	"directory through a symlink":           {entries: []tar.Header{symlink("l", "OUT"), {Name: "l/sub", Typeflag: tar.TypeDir, Mode: 0o4777, Uid: 1234}}, fails: true},
	"symlink loop":                          {entries: []tar.Header{symlink("a", "b"), symlink("b", "a"), regular("a/x")}, fails: true},
	"symlink to itself":                     {entries: []tar.Header{symlink("a", "a"), regular("a/x")}, fails: true},
	"symlink into /proc":                    {entries: []tar.Header{symlink("l", "/proc/self/root"), regular("lOUT/canary"), symlink("m", "/proc/1/cwd"), regular("m/x")}, fails: true},
	"block device":                          {entries: []tar.Header{{Name: "sda", Typeflag: tar.TypeBlock, Devmajor: 8, Mode: 0o666}}},
	"character device":                      {entries: []tar.Header{{Name: "mem", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 1, Mode: 0o666}}},
	"device through a symlink":              {entries: []tar.Header{symlink("l", "OUT"), {Name: "l/mem", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 1}}, fails: true},
	"attributes of overlayfs": {entries: []tar.Header{{Name: "x", Typeflag: tar.TypeDir, Mode: 0o755, PAXRecords: map[string]string{
		"SCHILY.xattr.trusted.overlay.redirect": "/etc", "SCHILY.xattr.trusted.overlay.opaque": "y",
		"SCHILY.xattr.trusted.overlay.metacopy": "", "SCHILY.xattr.user.overlay.redirect": "/etc",
	}}}},
	"attribute of SELinux":      {entries: []tar.Header{{Name: "x", Typeflag: tar.TypeReg, PAXRecords: map[string]string{"SCHILY.xattr.security.selinux": "system_u:object_r:shadow_t:s0"}}}},
	"mode of the root":          {entries: []tar.Header{{Name: "..", Typeflag: tar.TypeDir, Mode: 0o4777, Uid: 1234}}},
	"root is a file":            {entries: []tar.Header{regular("/"), symlink(".", "OUT"), regular("x")}},
	"file is a directory":       {entries: []tar.Header{regular("f"), regular("f/x")}, fails: true},
	"component of 300 bytes":    {entries: []tar.Header{regular(strings.Repeat("x", 300))}, fails: true},
	"300,000 nested components": {entries: []tar.Header{regular(strings.Repeat("d/", 300_000) + "x")}, fails: true},
	"unknown type":              {entries: []tar.Header{{Name: "x", Typeflag: 'Z'}}, fails: true},
}

func regular(name string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Size: 3, Mode: 0o644}
}

func directory(name string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}
}

func symlink(name, target string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}
}

func hardLink(name, target string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target}
}

// treeState describes the files below dir: their names, modes, owners, sizes, times, numbers of links, extended
// attributes and content.
func treeState(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		attrs := make([]byte, 1024)
		n, err := unix.Llistxattr(path, attrs)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %o %d:%d %d %v links %d attributes %q", path, st.Mode, st.Uid, st.Gid, st.Size, st.Mtim, st.Nlink, attrs[:n])
		if d.Type().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %q", data)
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestHostileLayers unpacks layers that try to escape from their directory. Nothing outside may
// change, no device may appear, and no extended attribute that the host interprets.
func TestHostileLayers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for name, tt := range hostileLayers {
		t.Run(name, func(t *testing.T) {
			outside := t.TempDir()
			if err := os.WriteFile(filepath.Join(outside, "canary"), []byte("alive"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(filepath.Join(outside, "sub"), 0o700); err != nil {
				t.Fatal(err)
			}
			before := treeState(t, outside)
			dir := filepath.Join(t.TempDir(), "fs")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			entries := make([]tar.Header, len(tt.entries))
			for i, h := range tt.entries {
				h.Name, h.Linkname = strings.ReplaceAll(h.Name, "OUT", outside), strings.ReplaceAll(h.Linkname, "OUT", outside)
				entries[i] = h
			}
			if err := unpack(t.Context(), dir, bytes.NewReader(tarOf(entries...))); (err != nil) != tt.fails {
				t.Errorf("unpack: %v, want an error: %v", err, tt.fails)
			}
			if after := treeState(t, outside); after != before {
				t.Errorf("outside was\n%s\nand is\n%s", before, after)
			}
			checkHarmless(t, dir)
		})
	}
}

// checkHarmless checks that an unpacked layer contains no device except whiteouts, and no extended
// attribute except an opaque mark, file capabilities and those of users.
func checkHarmless(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		if kind := st.Mode & unix.S_IFMT; kind == unix.S_IFBLK || kind == unix.S_IFCHR && st.Rdev != 0 {
			t.Errorf("%s is a device", path)
		}
		attrs := make([]byte, 1024)
		n, err := unix.Llistxattr(path, attrs)
		if err != nil {
			return err
		}
		for attr := range strings.SplitSeq(strings.TrimRight(string(attrs[:n]), "\x00"), "\x00") {
			switch {
			case attr == "", attr == opaqueAttr && path != filepath.Join(dir, "x"), attr == "security.capability":
			case strings.HasPrefix(attr, "user.") && !strings.HasPrefix(attr, "user.overlay."):
			default:
				t.Errorf("%s has the attribute %s", path, attr)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// archiveFile is a file of an image archive.
type archiveFile struct {
	name string
	data []byte
}

func text(name, format string, args ...any) archiveFile {
	return archiveFile{name, fmt.Appendf(nil, format, args...)}
}

// TestHostileArchives imports malformed and hostile archives. Each must be rejected with an error, or
// give a complete image if stated, and must leave nothing in the store.
func TestHostileArchives(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	sum := func(data []byte) string { s := sha256.Sum256(data); return hex.EncodeToString(s[:]) }
	layer := tarOf(regular("x"))
	config := fmt.Sprintf(`{"os":"linux","architecture":%q,"rootfs":{"diff_ids":["sha256:%s"]}}`, runtime.GOARCH, sum(layer))
	docker := `[{"Config":"c.json","RepoTags":["a:b"],"Layers":["l.tar"]}]`
	// oci returns the files of an OCI layout with this manifest, and other blobs.
	oci := func(manifest string, blobs ...string) []archiveFile {
		files := []archiveFile{text("index.json", `{"manifests":[{"digest":"sha256:%s"}]}`, sum([]byte(manifest)))}
		for _, b := range append(blobs, manifest) {
			files = append(files, text("blobs/sha256/"+sum([]byte(b)), "%s", b))
		}
		return files
	}
	deep := `{"manifests":[]}`
	levels := []string{}
	for range 6 {
		levels = append(levels, deep)
		deep = fmt.Sprintf(`{"manifests":[{"digest":"sha256:%s"}]}`, sum([]byte(deep)))
	}
	for name, tt := range map[string]struct {
		files  []archiveFile
		images int
	}{
		"complete":                       {[]archiveFile{text("manifest.json", "%s", docker), text("c.json", "%s", config), {"l.tar", layer}}, 1},
		"empty":                          {nil, 0},
		"manifest is not JSON":           {[]archiveFile{text("manifest.json", "[")}, 0},
		"manifest is null":               {[]archiveFile{text("manifest.json", "null")}, 0},
		"configuration outside":          {[]archiveFile{text("manifest.json", `[{"Config":"../../../../../../etc/passwd","RepoTags":["a:b"]}]`)}, 0},
		"layer outside":                  {[]archiveFile{text("manifest.json", `[{"Config":"c.json","RepoTags":["a:b"],"Layers":["/etc/passwd"]}]`), text("c.json", "%s", config)}, 0},
		"missing configuration":          {[]archiveFile{text("manifest.json", "%s", docker)}, 0},
		"missing layer":                  {[]archiveFile{text("manifest.json", "%s", docker), text("c.json", "%s", config)}, 0},
		"other layer":                    {[]archiveFile{text("manifest.json", "%s", docker), text("c.json", "%s", config), {"l.tar", tarOf(regular("y"))}}, 0},
		"data after the layer":           {[]archiveFile{text("manifest.json", "%s", docker), text("c.json", "%s", config), {"l.tar", append(bytes.Clone(layer), 'x')}}, 0},
		"truncated layer":                {[]archiveFile{text("manifest.json", "%s", docker), text("c.json", "%s", config), {"l.tar", layer[:len(layer)/3]}}, 0},
		"truncated gzip":                 {[]archiveFile{text("manifest.json", "%s", docker), text("c.json", "%s", config), {"l.tar", compressed(t, layer)[:20]}}, 0},
		"gzip header only":               {[]archiveFile{text("manifest.json", "%s", docker), text("c.json", "%s", config), {"l.tar", []byte{0x1f, 0x8b}}}, 0},
		"zstd with a window of 2 GB":     {[]archiveFile{text("manifest.json", "%s", docker), text("c.json", "%s", config), {"l.tar", []byte{0x28, 0xb5, 0x2f, 0xfd, 0x04, 0xa8, 0, 0, 0}}}, 0},
		"more layers than digests":       {[]archiveFile{text("manifest.json", `[{"Config":"c.json","Layers":["l.tar","l.tar"]}]`), text("c.json", "%s", config), {"l.tar", layer}}, 0},
		"invalid layer digest":           {[]archiveFile{text("manifest.json", "%s", docker), text("c.json", `{"rootfs":{"diff_ids":["sha256:../../../x"]}}`), {"l.tar", layer}}, 0},
		"invalid tag":                    {[]archiveFile{text("manifest.json", `[{"Config":"c.json","RepoTags":["../../x"],"Layers":["l.tar"]}]`), text("c.json", "%s", config), {"l.tar", layer}}, 0},
		"other platform":                 {[]archiveFile{text("manifest.json", "%s", docker), text("c.json", `{"os":"plan9","rootfs":{"diff_ids":[]}}`), {"l.tar", layer}}, 0},
		"configuration of 9 MiB":         {[]archiveFile{text("manifest.json", "%s", docker), {"c.json", bytes.Repeat([]byte(" "), 9<<20)}, {"l.tar", layer}}, 0},
		"configuration is a list":        {[]archiveFile{text("manifest.json", "%s", docker), text("c.json", "[]"), {"l.tar", layer}}, 0},
		"index is not JSON":              {[]archiveFile{text("index.json", "{")}, 0},
		"index without images":           {[]archiveFile{text("index.json", `{"manifests":[]}`)}, 0},
		"index with an invalid digest":   {[]archiveFile{text("index.json", `{"manifests":[{"digest":"sha256:../../x"}]}`)}, 0},
		"index with a missing manifest":  {[]archiveFile{text("index.json", `{"manifests":[{"digest":"sha256:%s"}]}`, sum(nil))}, 0},
		"manifest with another digest":   {[]archiveFile{text("index.json", `{"manifests":[{"digest":"sha256:%s"}]}`, sum(nil)), text("blobs/sha256/"+sum(nil), "{}")}, 0},
		"nested indexes":                 {oci(deep, levels...), 0},
		"configuration without a digest": {oci(`{"config":{"mediaType":"application/vnd.oci.image.config.v1+json"},"layers":[]}`), 0},
		"layer without a digest":         {oci(fmt.Sprintf(`{"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s"},"layers":[{}]}`, sum([]byte(config))), config), 0},
		"artifact":                       {oci(`{"config":{"mediaType":"application/vnd.example+json","digest":"sha256:00"}}`), 0},
		"name that is a path":            {[]archiveFile{text("index.json", `{"manifests":[{"digest":"sha256:%s","annotations":{"io.containerd.image.name":"../../x"}}]}`, sum(nil))}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			for _, f := range tt.files {
				if err := w.WriteHeader(&tar.Header{Name: f.name, Size: int64(len(f.data)), Mode: 0o600}); err != nil {
					t.Fatal(err)
				}
				if _, err := w.Write(f.data); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			checkImport(t, b.Bytes(), tt.images)
		})
	}
	loop := []tar.Header{symlink("manifest.json", "a"), symlink("a", "b"), symlink("b", "a")}
	t.Run("symlink loop", func(t *testing.T) { checkImport(t, tarOf(loop...), 0) })
	t.Run("symlink to the host", func(t *testing.T) { checkImport(t, tarOf(symlink("manifest.json", "/etc/passwd")), 0) })
	t.Run("hard link to the host", func(t *testing.T) { checkImport(t, tarOf(hardLink("manifest.json", "/etc/passwd")), 0) })
	t.Run("not an archive", func(t *testing.T) { checkImport(t, []byte(strings.Repeat("x", 4096)), 0) })
	t.Run("truncated archive", func(t *testing.T) { checkImport(t, tarOf(regular("manifest.json"))[:600], 0) })
}

func compressed(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// checkImport imports an archive, which must give this number of images, or an error and nothing in
// the store if images is zero.
func checkImport(t *testing.T, archive []byte, images int) {
	t.Helper()
	s := openStore(t, t.TempDir())
	list, err := s.Import(t.Context(), bytes.NewReader(archive))
	if (err != nil) != (images == 0) || len(list) != images || len(s.List()) != images {
		t.Errorf("imported %d images, stored %d, want %d: %v", len(list), len(s.List()), images, err)
	}
	if err := s.CollectPending(none); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{"tmp", "layers", "images"} {
		want := images
		if dir == "tmp" {
			want = 0
		}
		entries, err := os.ReadDir(s.path(dir))
		if err != nil || len(entries) != want {
			t.Errorf("%s contains %v, %v", dir, entries, err)
		}
	}
}
