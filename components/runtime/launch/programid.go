package launch

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"
)

// noteWithin is how far from the start of a program Go's note is looked for: the
// linker puts notes behind the headers.
const noteWithin = 16 << 10

// programID tells a program from other builds of it: by the note that Go's linker
// writes, which has a sum of the content, or else by what the file system knows.
// It is empty of what cannot be read.
func programID(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	id := goBuildID(io.LimitReader(f, noteWithin))
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

// goBuildID is what the note of type 4 by the name of Go says: the sizes of its name
// and its content, the type, the name, the content. It is nil when there is none.
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
