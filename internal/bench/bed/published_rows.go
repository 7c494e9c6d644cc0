package bed

import "fmt"

// publishedJobs is the number of threads in table 1.
const publishedJobs = 512

// boundThreads is the number of threads a core above which a row is flagged: most of what a thread then waits for is its
// turn on a CPU. With 512 threads on 32 cores, where the published table was measured, a row is not flagged.
const boundThreads = 16

// Rows returns the rows of the table of berth bench disk: block sizes as published, or, when quick, 4 KiB and 32 KiB only,
// with no more threads than the cores can serve without the row being flagged.
func Rows(quick bool, cores int) []Job {
	reads, writes, threads := []int64{1, 2, 4, 8, 16, 32, 64, 128}, []int64{4, 8, 16, 32, 64}, publishedJobs
	if quick {
		reads, writes, threads = []int64{4, 32}, []int64{4, 32}, min(publishedJobs, boundThreads*cores)
	}
	var rows []Job
	for _, kib := range reads {
		rows = append(rows, Job{Name: fmt.Sprintf("read %dK x%d", kib, threads), Value: float64(kib << 10), Pattern: "randread", Block: kib << 10, Threads: threads})
	}
	for _, kib := range writes {
		rows = append(rows, Job{Name: fmt.Sprintf("write %dK x1", kib), Value: float64(kib << 10), Pattern: "write", Block: kib << 10, Threads: 1})
	}
	return rows
}
