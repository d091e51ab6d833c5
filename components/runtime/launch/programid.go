package launch

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"
)

// noteSearchSize is the size of the part of a program that is searched for Go's build ID note. The
// linker puts notes after the headers.
const noteSearchSize = 16 << 10

// programID returns an identifier of a build of a program: Go's build ID, or else file attributes.
// It is empty if the file cannot be read.
func programID(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	id := goBuildID(io.LimitReader(f, noteSearchSize))
	if id == nil {
		info, err := f.Stat()
		if err != nil {
			return ""
		}
		id = fmt.Appendf(nil, "%d %d", info.Size(), info.ModTime().UnixNano())
	}
	sum := sha256.Sum256(id)
	return fmt.Sprintf("%x", sum[:4])
}

// goBuildID returns the content of the ELF note with name "Go" and type 4, or nil. A note consists
// of the sizes of its name and content, the type, the name, and the content.
func goBuildID(program io.Reader) []byte {
	head, err := io.ReadAll(program)
	if err != nil {
		return nil
	}
	const typeAndName = "\x04\x00\x00\x00Go\x00\x00"
	at := bytes.Index(head, []byte(typeAndName))
	if at < 4 {
		return nil
	}
	size := binary.LittleEndian.Uint32(head[at-4 : at])
	content := head[at+len(typeAndName):]
	if size == 0 || uint64(size) > uint64(len(content)) {
		return nil
	}
	return content[:size]
}
