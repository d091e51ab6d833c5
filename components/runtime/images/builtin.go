package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// caFiles are the files in which distributions store public CA certificates.
var caFiles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}

// IsBuiltIn reports whether the image reference ref, which may have no tag, refers to the built-in image called name.
func IsBuiltIn(ref, name string) bool {
	got, err := Normalize(ref)
	if err != nil {
		return false
	}
	repository, _, _ := strings.Cut(name, ":")
	for _, name := range []string{name, repository} {
		if normal, err := Normalize(name); err == nil && normal == got {
			return true
		}
	}
	return false
}

// BuiltIn creates the built-in image called name, whose root contains the program at file and a few standard files. The
// program is linked instead of copied if the file system supports it. The image ID depends on the identity of the file,
// so a new program yields a new image. An existing image for the same program is reused. Built-in images of other
// programs lose their protection from garbage collection.
func (s *Store) BuiltIn(ctx context.Context, name, file string) (*Image, error) {
	normal, err := Normalize(name)
	if err != nil {
		return nil, err
	}
	// A reference without a tag means the running version.
	repository, _, _ := strings.Cut(name, ":")
	latest, err := Normalize(repository)
	if err != nil {
		return nil, err
	}
	file, err = filepath.EvalSymlinks(file)
	if err != nil {
		return nil, fmt.Errorf("resolving program of the built-in image: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return nil, fmt.Errorf("resolving program of the built-in image: %w", err)
	}
	// Hashing the whole file would take longer than a pod start.
	identity := fmt.Sprintf("%s %d %d %d %d", normal, st.Dev, st.Ino, st.Size, st.Mtim.Nano())
	sum := sha256.Sum256([]byte(identity))
	diffID := "sha256:" + hex.EncodeToString(sum[:])
	var doc document
	doc.OS, doc.Architecture = "linux", runtime.GOARCH
	doc.RootFS.Type, doc.RootFS.DiffIDs = "layers", []string{diffID}
	doc.Config = Config{
		Entrypoint: []string{"/hyperkube"},
		Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/"},
		WorkingDir: "/",
	}
	config, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("creating built-in image: %w", err)
	}
	sum = sha256.Sum256(config)
	image := &Image{
		ID: "sha256:" + hex.EncodeToString(sum[:]), Tags: []string{normal, latest}, Layers: []string{"built-in-" + layerName(diffID)},
		Size: uint64(st.Size), Pinned: true, BuiltIn: true, Config: doc.Config,
	}
	if have, err := s.Get(normal); err == nil && have.ID == image.ID && s.layers.hasAll(have) {
		return have, nil
	}
	defer s.Hold()()
	err = s.layers.create(ctx, image.Layers[0], false, func(dir string) error { return fillBuiltIn(dir, file) })
	if err != nil {
		return nil, fmt.Errorf("creating built-in image: %w", s.diskFull(err))
	}
	image, err = s.put(image)
	if err != nil {
		return nil, s.diskFull(err)
	}
	// Images of other versions stay until they are unused.
	for _, old := range s.List() {
		if old.BuiltIn && old.ID != image.ID && old.Pinned {
			old = old.clone()
			old.Pinned = false
			s.mu.Lock()
			err := s.write(old)
			if err == nil {
				s.images[old.ID] = old
			}
			s.mu.Unlock()
			if err != nil {
				return nil, fmt.Errorf("recording image %s: %w", old.ID, s.diskFull(err))
			}
		}
	}
	return image, nil
}

// fillBuiltIn creates the files of the built-in image in dir: program, links to it named kubectl and etcdctl,
// directories, user and group files, and the host's CA certificates, if it has any.
func fillBuiltIn(dir, program string) error {
	for name, mode := range map[string]os.FileMode{
		"tmp": 0o1777 | os.ModeSticky, "etc": 0o755, "etc/ssl": 0o755, "etc/ssl/certs": 0o755,
		"usr": 0o755, "usr/local": 0o755, "usr/local/bin": 0o755, "root": 0o700, "var": 0o755, "run": 0o755, "proc": 0o555, "sys": 0o555, "dev": 0o755,
	} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{
		"etc/passwd":        "root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n",
		"etc/group":         "root:x:0:\nnogroup:x:65534:\n",
		"etc/nsswitch.conf": "hosts: files dns\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	for _, file := range caFiles {
		if data, err := os.ReadFile(file); err == nil {
			if err := os.WriteFile(filepath.Join(dir, "etc/ssl/certs/ca-certificates.crt"), data, 0o644); err != nil {
				return err
			}
			break
		}
	}
	// Commands that runbooks run in control plane pods.
	for _, name := range []string{"etcdctl", "kubectl"} {
		if err := os.Symlink("/hyperkube", filepath.Join(dir, "usr/local/bin", name)); err != nil {
			return err
		}
	}
	return linkOrCopy(program, filepath.Join(dir, "hyperkube"))
}

// linkOrCopy creates the file to with the content of from. It uses a hard link or a reflink if possible, because a copy
// would take disk space and time.
func linkOrCopy(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	// A hard link shares the mode, which must allow all users to execute it.
	if info.Mode().Perm()&0o555 == 0o555 && os.Link(from, to) == nil {
		return nil
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())); err != nil {
		if _, err := io.Copy(dst, src); err != nil {
			dst.Close()
			return fmt.Errorf("copying program: %w", err)
		}
	}
	return dst.Close()
}
