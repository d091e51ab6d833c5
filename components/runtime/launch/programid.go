package launch

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"
)

// noteSearchSize is the number of bytes at the beginning of a program in which goBuildID searches for Go's build ID.
// The linker writes it directly after the ELF headers.
const noteSearchSize = 16 << 10

// programID returns an identifier that differs between builds of the program at path. It is derived from Go's build ID,
// or else from the size and modification time of the file. It is empty if the file cannot be read.
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

// goBuildID returns Go's build ID in the first bytes of a program, or nil if it is not found. It is the content of the
// ELF note with name "Go" and type 4; a note consists of the sizes of its name and content, the type, the name, and the
// content.
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
