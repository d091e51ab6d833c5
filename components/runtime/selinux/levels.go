package selinux

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// policyCategories is the number of categories that SELinux policies for containers define. The level of a pod
// consists of two of them, which separates its files and processes from those of other pods.
const policyCategories = 1024

// levels allocates SELinux levels and counts the sandboxes and containers that use each level: the containers of a pod
// share one, and a pod may request a specific one. Its methods are safe for concurrent use.
type levels struct {
	// pairs is the number of available levels.
	pairs int

	mu    sync.Mutex // guards inUse
	inUse map[string]int
}

// newLevels returns the allocator of levels that consist of two of the given number of categories. No level is in
// use.
func newLevels(categories int) *levels {
	return &levels{pairs: categories * (categories - 1) / 2, inUse: map[string]int{}}
}

// acquire records that one more sandbox or container uses a level, which others may use too.
func (l *levels) acquire(level string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inUse[canonical(level)]++
}

// release records that one sandbox or container less uses a level. A level that none uses can be allocated again.
func (l *levels) release(level string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	level = canonical(level)
	if l.inUse[level]--; l.inUse[level] <= 0 {
		delete(l.inUse, level)
	}
}

// allocate returns a level that no sandbox or container uses, and records that one uses it now. It selects the
// level at random, so that a level is not reused soon: files of a deleted pod may still have it. It returns an
// error if all levels are in use.
func (l *levels) allocate() (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	start := rand.N(l.pairs)
	for i := range l.pairs {
		level := pair((start + i) % l.pairs)
		if l.inUse[level] == 0 {
			l.inUse[level] = 1
			return level, nil
		}
	}
	return "", errors.New("all SELinux levels are in use")
}

// pair returns the nth SELinux level of those that consist of two categories, such as "s0:c1,c2", counting from 0.
// The lower category is first.
func pair(n int) string {
	high := 1
	for n >= high {
		n -= high
		high++
	}
	return fmt.Sprintf("s0:c%d,c%d", n, high)
}

// canonical returns a level of two categories in the form that pair returns, so that the same categories in another
// order count as the same level. Other levels are returned unchanged.
func canonical(level string) string {
	sensitivity, list, found := strings.Cut(level, ":")
	if !found {
		return level
	}
	var numbers []int
	for _, part := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == '.' }) {
		n, err := strconv.Atoi(strings.TrimPrefix(part, "c"))
		if err != nil || !strings.HasPrefix(part, "c") {
			return level
		}
		numbers = append(numbers, n)
	}
	// c1.c3 is a range of three categories.
	if len(numbers) != 2 || strings.Contains(list, ".") && numbers[1]-numbers[0] != 1 {
		return level
	}
	slices.Sort(numbers)
	return fmt.Sprintf("%s:c%d,c%d", sensitivity, numbers[0], numbers[1])
}
