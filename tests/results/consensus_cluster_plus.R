# ConsensusClusterPlus on the features in features.csv: the labels that it saw, and what it made of them.
suppressPackageStartupMessages({
  library(ConsensusClusterPlus)
  library(clue)
})
given <- commandArgs(TRUE) # reps, largest k
reps <- as.integer(given[1])
most <- as.integer(given[2])
X <- as.matrix(read.csv("features.csv", header = FALSE))
rownames(X) <- paste0("s", seq_len(nrow(X)))

# Its own hook for other algorithms; notes every clustering of a subsample on the way.
seen <- lapply(seq_len(most), function(k) matrix(-1L, nrow(X), 0))
noted <- function(this_dist, k) {
  items <- attr(this_dist, "Labels")
  found <- suppressWarnings(kmeans(X[items, ], k, iter.max = 10)$cluster)
  column <- rep(-1L, nrow(X))
  column[match(items, rownames(X))] <- found - 1L
  seen[[k]] <<- cbind(seen[[k]], column)
  found
}
pdf(NULL)
started <- proc.time()
result <- suppressMessages(ConsensusClusterPlus(dist(X),
  maxK = most, reps = reps, pItem = 0.8, clusterAlg = "noted", seed = 1, plot = NULL, verbose = FALSE
))
took <- proc.time() - started
cat(took[["elapsed"]], took[["user.self"]] + took[["sys.self"]], "\n") # seconds of the clock and of the CPU
icl <- calcICL(result, plot = NULL)
# Its function that draws CDF and delta area, made to return what it draws.
drawn <- ConsensusClusterPlus:::CDF
body(drawn) <- as.call(c(as.list(body(drawn)), quote(list(area = areaK, delta = deltaK))))
areas <- drawn(lapply(result, function(one) if (is.list(one)) one$consensusMatrix else one))

write.csv(data.frame(k = 2:most, area = areas$area, delta = areas$delta), "areas.csv", row.names = FALSE)
write.csv(icl$clusterConsensus, "clusters.csv", row.names = FALSE)
write.csv(icl$itemConsensus, "items.csv", row.names = FALSE)
for (k in 2:most) {
  write.table(seen[[k]], paste0("labels", k, ".csv"), sep = ",", row.names = FALSE, col.names = FALSE)
  write.table(format(result[[k]]$consensusMatrix, digits = 17), paste0("matrix", k, ".csv"),
    sep = ",", row.names = FALSE, col.names = FALSE, quote = FALSE)
  write.table(result[[k]]$consensusClass, paste0("class", k, ".csv"), row.names = FALSE, col.names = FALSE)
}

# clue: mean co-membership of partitions of all samples, and their NMI.
parts <- lapply(1:5, function(i) as.cl_partition(kmeans(X, 3)$cluster))
together <- Reduce(`+`, lapply(parts, function(one) tcrossprod(cl_membership(one)))) / length(parts)
write.table(sapply(parts, cl_class_ids) - 1, "whole.csv", sep = ",", row.names = FALSE, col.names = FALSE)
write.table(format(unclass(together), digits = 17), "together.csv", sep = ",", row.names = FALSE, col.names = FALSE,
  quote = FALSE)
agreement <- as.matrix(cl_agreement(cl_ensemble(list = parts), method = "NMI"))
write.table(format(unclass(agreement), digits = 17), "nmi.csv", sep = ",", row.names = FALSE, col.names = FALSE,
  quote = FALSE)
